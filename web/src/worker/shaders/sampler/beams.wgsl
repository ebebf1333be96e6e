// Chooses the next tokens of each prompt's beams, as py_src/capstan/generation/beam_search.py defines it, and makes them the next step's input.
//
// A continuation scores ((logit - largest) - log(sum)) + score of its beam, in f32: the largest first, the lowest beam first among equals,
// then the lowest token. Ends of sequences are reported; other tokens go on as the beams of the next step, until there are BEAMS.
// Beam b of the next step continues beam parents[b]: it reads each position where that beam read it, and the new one in its own caches.
//
// Dispatch: (prompts), a workgroup each. Before it are BEAMS (of a prompt), LOOKED (the continuations of a beam), STEPS (records of
// the ring), CAPACITY (positions of a row), PROMPTS and the array ENDS. shortlists is u32 [PROMPTS * BEAMS, 1 + 2 * LOOKED] as shortlist.wgsl
// writes them, state [PROMPTS * BEAMS, 8], input_ids int64 [PROMPTS * BEAMS], table u32 [PROMPTS * BEAMS, CAPACITY], scores f32 [PROMPTS * BEAMS],
// records u32 [STEPS, PROMPTS, WORDS]. A record: the number of ends (NO_NUMBER: a beam has no number among its logits), the best score, parent,
// token and score of each beam, then beam and score of each end among the first BEAMS continuations.
// Limits: BEAMS * LOOKED is at most 1024. With CAPACITY positions nothing but the ring advances.

@group(0) @binding(0) var<storage, read> shortlists: array<u32>;
@group(0) @binding(1) var<storage, read_write> state: array<u32>;
@group(0) @binding(2) var<storage, read_write> input_ids: array<u32>;
@group(0) @binding(3) var<storage, read_write> table: array<u32>;
@group(0) @binding(4) var<storage, read_write> scores: array<f32>;
@group(0) @binding(5) var<storage, read_write> records: array<u32>;

const WG = 256u;
const STATE_STRIDE = 8u;
const CANDIDATES = BEAMS * LOOKED;
const LIST = 1u + 2u * LOOKED;
const WORDS = 2u + 5u * BEAMS;
const NO_NUMBER = 0xffffffffu;
const LARGEST = 3.4028234663852886e38;

var<workgroup> sums: array<f32, CANDIDATES>;
var<workgroup> order: array<u32, CANDIDATES>;
var<workgroup> parents: array<u32, BEAMS>;
var<workgroup> tokens: array<u32, BEAMS>;

// A logit; infinite ones are the largest numbers, so that differences are numbers.
fn logit_at(at: u32) -> f32 {
  let bits = shortlists[at];
  return bitcast<f32>(select(bits, (bits & 0x80000000u) | 0x7f7fffffu, (bits & 0x7fffffffu) >= 0x7f800000u));
}

fn token_at(prompt: u32, candidate: u32) -> u32 {
  return shortlists[(prompt * BEAMS + candidate / LOOKED) * LIST + 2u + 2u * (candidate % LOOKED)];
}

fn is_end(token: u32) -> bool {
  var ends = ENDS;
  for (var i = 0u; i < END_COUNT; i++) {
    if (ends[i] == token) {
      return true;
    }
  }
  return false;
}

// Whether continuation i comes before j.
fn precedes(prompt: u32, i: u32, j: u32) -> bool {
  if (sums[i] != sums[j]) {
    return sums[i] > sums[j];
  }
  if (i / LOOKED != j / LOOKED) {
    return i < j;
  }
  return token_at(prompt, i) < token_at(prompt, j);
}

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) thread: u32, @builtin(workgroup_id) group: vec3<u32>) {
  let prompt = group.x;
  let first = prompt * BEAMS;
  let length = state[first * STATE_STRIDE];
  let cursor = state[first * STATE_STRIDE + 1u];
  for (var i = thread; i < CANDIDATES; i += WG) {
    let list = (first + i / LOOKED) * LIST;
    let log_of = (logit_at(list + 1u + 2u * (i % LOOKED)) - logit_at(list + 1u)) - log(bitcast<f32>(shortlists[list]));
    sums[i] = max(log_of + scores[first + i / LOOKED], -LARGEST);
  }
  workgroupBarrier();
  for (var i = thread; i < CANDIDATES; i += WG) {
    var place = 0u;
    for (var j = 0u; j < CANDIDATES; j++) {
      place += select(0u, 1u, j != i && precedes(prompt, j, i));
    }
    order[place] = i;
  }
  workgroupBarrier();
  if (thread == 0u) {
    let record = (cursor % STEPS * PROMPTS + prompt) * WORDS;
    var chosen = 0u;
    var ended = 0u;
    for (var place = 0u; place < CANDIDATES && chosen < BEAMS; place++) {
      let candidate = order[place];
      let token = token_at(prompt, candidate);
      let score = sums[candidate];
      if (is_end(token)) {
        if (place < BEAMS) {
          let at = record + 2u + 3u * BEAMS + 2u * ended;
          records[at] = candidate / LOOKED;
          records[at + 1u] = bitcast<u32>(score);
          ended++;
        }
      } else {
        let at = record + 2u + 3u * chosen;
        records[at] = candidate / LOOKED;
        records[at + 1u] = token;
        records[at + 2u] = bitcast<u32>(score);
        parents[chosen] = candidate / LOOKED;
        tokens[chosen] = token;
        scores[first + chosen] = score;
        chosen++;
      }
    }
    for (var beam = 0u; beam < BEAMS; beam++) {
      if (logit_at((first + beam) * LIST + 1u) <= -LARGEST) {
        ended = NO_NUMBER;
      }
    }
    records[record] = ended;
    records[record + 1u] = bitcast<u32>(sums[order[0]]);
  }
  workgroupBarrier();
  if (thread < BEAMS) {
    state[(first + thread) * STATE_STRIDE + 1u] = cursor + 1u;
  }
  if (length >= CAPACITY) {
    return;
  }
  for (var position = thread; position < length; position += WG) {
    var old = array<u32, BEAMS>();
    for (var beam = 0u; beam < BEAMS; beam++) {
      old[beam] = table[(first + beam) * CAPACITY + position];
    }
    for (var beam = 0u; beam < BEAMS; beam++) {
      table[(first + beam) * CAPACITY + position] = old[parents[beam]];
    }
  }
  if (thread < BEAMS) {
    let row = first + thread;
    table[row * CAPACITY + length] = row;
    input_ids[2u * row] = tokens[thread];
    input_ids[2u * row + 1u] = 0u;
    state[row * STATE_STRIDE] = length + 1u;
    state[row * STATE_STRIDE + 3u] = tokens[thread];
  }
}
