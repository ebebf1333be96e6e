// Before the first pass, where stages ban tokens by what the sequence is: each marks the tokens that must not come next.
//
// Dispatch: (BLOCKS, rows). Bindings: 0 params, 3 state (read), 5 memory (bans written). After sampler.wgsl.

@group(0) @binding(3) var<storage, read> state: array<u32>;
@group(0) @binding(5) var<storage, read_write> memory: array<u32>;

// Threads that ban the same token write the same number.
fn ban(row: u32, token: u32) {
  memory[ban_slot(row, token)] = state[row * STATE_STRIDE] + 1u;
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  ban_all(group.y, group.x * WG + thread, BLOCKS * WG);
}
