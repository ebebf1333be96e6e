// Ends a step of one row: the token goes to the ring and, unless the row is done, becomes the next step's input.
//
// Done: padding into the ring (NOTHING in a drafted step), nothing else. No token: into the ring, the row is done. An end-of-sequence id: into the ring, the row is done, input and mask stay.
// Else: input_ids = token, mask[length] = 1, position_ids = length, length + 1, the memory has the token; at max_length the ring alone advances.
// A drafted step calls it for each position in turn; past the first pick that is not the draft after it, NOTHING goes to the ring.
// int64 values are written as two words. A model without position_ids has a buffer of the
// sampler's own there. One thread of the row calls it. `settled` and `follow` are in the text of the stages.

struct Sizes {
  ring_capacity: u32,
  max_length: u32,
}

const NOTHING = 0xfffffffeu;

fn advance(row: u32, given: u32) {
  let at = row * STATE_STRIDE;
  let length = state[at];
  let cursor = state[at + 1u];
  let slot = row * sizes.ring_capacity + cursor % sizes.ring_capacity;
  state[at + 1u] = cursor + 1u;
  if (state[at + 2u] != 0u) {
    ring[slot] = select(params.pad, NOTHING, POSITIONS > 1u);
    return;
  }
  if (POSITIONS > 1u && state[REFUSED] != 0u) {
    ring[slot] = NOTHING;
    return;
  }
  let token = settled(row, given);
  if (POSITIONS > 1u) {
    let place = state[PLACE];
    state[PLACE] = place + 1u;
    if (place + 1u == POSITIONS || memory[draft_slot(place)] != token) {
      state[REFUSED] = 1u;
    }
  }
  ring[slot] = token;
  if (token == NO_TOKEN) {
    state[at + 2u] = 1u;
    return;
  }
  state[at + 3u] = token;
  if (is_end(token)) {
    state[at + 2u] = 1u;
    return;
  }
  if (length >= sizes.max_length) {
    return;
  }
  input_ids[2u * row] = token;
  input_ids[2u * row + 1u] = 0u;
  let element = 2u * (row * sizes.max_length + length);
  mask[element] = 1u;
  mask[element + 1u] = 0u;
  position_ids[2u * row] = length;
  position_ids[2u * row + 1u] = 0u;
  state[at] = length + 1u;
  follow(row, token);
  if (HAS_COUNTS) {
    let slot = row_memory(row) + token;
    memory[slot] = (memory[slot] | 0x80000000u) + 1u;
  }
  if (HAS_SEQUENCE) {
    memory[row_memory(row) + params.ids_at + sequence_length(row)] = token; // the last one, after the number
  }
}
