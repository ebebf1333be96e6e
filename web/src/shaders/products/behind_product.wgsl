// The operations behind a product: a gate or an activation, then a factor or a cap. Declares no bindings; POWER reads
// `exponent`, FACTOR `factor`.
//
// GATED, TIMES: silu(value) * other; ACTIVATED: silu(value). GELU: GELU in place of SiLU; POWER: max(value, 0) ^
// exponent[0]. FACTOR: * factor[0]; DIVIDED: / factor[0]; CAPPED: tanh(value / factor[0]) * factor[0].

// A gate is x * sigmoid(bent(x)): SiLU, or GELU by its form with tanh.
fn bent(x: f32) -> f32 {
#if GELU
  return x * (1.5957691216057308 + 0.07135481627260025 * x * x);
#else
  return x;
#endif
}

#if POWER
fn activated(x: f32) -> f32 {
  let base = max(x, 0.0);
  return select(pow(base, f32(exponent[0])), base * base, exponent[0] == 2);
}
#else
fn activated(x: f32) -> f32 {
  return x / (1.0 + exp(-bent(x)));
}
#endif

fn behind_product(product: f32, other: f32) -> f32 {
  var value = product;
#if GATED
  value = activated(value) * other;
#endif
#if TIMES
  value = activated(value) * other;
#endif
#if ACTIVATED
  value = activated(value);
#endif
#if FACTOR
#if CAPPED
  value = (1.0 - 2.0 / (exp(2.0 * value / f32(factor[0])) + 1.0)) * f32(factor[0]);
#else
#if DIVIDED
  value /= f32(factor[0]);
#else
  value *= f32(factor[0]);
#endif
#endif
#endif
  return value;
}
