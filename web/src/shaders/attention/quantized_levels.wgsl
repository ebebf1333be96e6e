// The levels of elements of 4 bits in onnxruntime's WebGPU provider, as parts of the length of their row.
const LEVELS = array<f32, 16>(
  -0.2377, -0.1809, -0.1419, -0.1104, -0.0829, -0.0578, -0.0342, -0.0113,
  0.0113, 0.0342, 0.0578, 0.0829, 0.1104, 0.1419, 0.1809, 0.2377);
