// The levels of elements of 4 bits in onnxruntime's WebGPU provider, as parts of the length of their row.
const LEVELS = array<f32, 16>(
  -0.2377, -0.1809, -0.1419, -0.1104, -0.0829, -0.0578, -0.0342, -0.0113,
  0.0113, 0.0342, 0.0578, 0.0829, 0.1104, 0.1419, 0.1809, 0.2377);
// A part is next to the level whose number is the count of the bounds below it.
const BOUNDS = array<f32, 15>(
  -0.2093, -0.1614, -0.1261, -0.0966, -0.0704, -0.0460, -0.0227, 0.0,
  0.0227, 0.0460, 0.0704, 0.0966, 0.1261, 0.1614, 0.2093);
