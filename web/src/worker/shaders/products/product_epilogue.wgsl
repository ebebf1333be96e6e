// The operations after a product: a gate or an activation, then a factor or a cap; and the bindings of these and of what
// kernels add by themselves.
//
// With weights_up or up: silu(value) * other; ACTIVATED: silu(value). GELU: GELU in place of SiLU, by erf if ERF; with exponent
// max(value, 0) ^ exponent[0]. With factor: * factor[0]; DIVIDED: / factor[0]; CAPPED: tanh(value / factor[0]) * factor[0].

#reads residual?: array<element>
#reads second?: array<element>
#reads bias?: array<element>
#reads exponent?: array<i32>
#reads factor?: array<element>
#reads up?: array<element>
#reads bias_up?: array<element>
#writes y: array<element>

#if exponent
fn activated(x: f32) -> f32 {
  let base = max(x, 0.0);
  return select(pow(base, f32(exponent[0])), base * base, exponent[0] == 2);
}
#else
#include activation
#endif

fn product_epilogue(product: f32, other: f32) -> f32 {
  var value = product;
#if weights_up
  value = activated(value) * other;
#endif
#if up
  value = activated(value) * other;
#endif
#if ACTIVATED
  value = activated(value);
#endif
#if factor
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

// The result after the product in column n, which is element `at` of [M, N]: `sum_up` belongs to the other half of a
// gated layer.
fn finished(n: u32, at: u32, sum: f32, sum_up: f32) -> element {
  var product = sum;
  var other = sum_up;
#if bias
  product += f32(bias[n]);
#if weights_up
  other += f32(bias_up[n]);
#endif
#endif
#if up
  other = f32(up[at]);
#endif
  var value = product_epilogue(product, other);
#if residual
  value += f32(residual[at]);
#endif
#if second
  value += f32(second[at]);
#endif
  return element(value);
}
