// Before the first pass, where stages ban tokens by what the sequence is: each marks the tokens that must not come next.
//
// Dispatch: (BLOCKS, rows). After sampler.wgsl.

// Threads that ban the same token write the same number.
fn ban(row: u32, token: u32) {
  memory[ban_slot(row, token)] = state[row * STATE_STRIDE] + 1u;
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  ban_all(group.y, group.x * WG + thread, BLOCKS * WG);
}
