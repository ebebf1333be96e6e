// Attention of one new token over a key/value cache: rotary embedding, cache write and one split of the positions.
// attention_shared.wgsl says what it computes, of what, and within which limits.

#include attention_shared
#if SHUFFLED
#include attention_subgroups
#else
#include attention_workgroup
#endif
