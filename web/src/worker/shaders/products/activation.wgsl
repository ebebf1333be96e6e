// An activation: SiLU, or GELU in place of it, by erf if ERF.

#if ERF
// erf, as onnxruntime has it: off by at most 1.5e-7 (Abramowitz and Stegun, 7.1.26).
fn erf(x: f32) -> f32 {
  let t = 1.0 / (1.0 + 0.3275911 * abs(x));
  let part = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
  return sign(x) * (1.0 - part * exp(-x * x));
}
#else
// A gate is x * sigmoid(bent(x)): SiLU, or GELU by its form with tanh.
fn bent(x: f32) -> f32 {
#if GELU
  return x * (1.5957691216057308 + 0.07135481627260025 * x * x);
#else
  return x;
#endif
}
#endif

fn activated(x: f32) -> f32 {
#if ERF
  return 0.5 * x * (1.0 + erf(x * 0.7071067811865475));
#else
  return x / (1.0 + exp(-bent(x)));
#endif
}
