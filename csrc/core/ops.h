// The ops that each instruction set implements: arguments and the table of functions. Shapes are those of
// headrace.ops.base; every function is called by all threads of a team and ends with all of them done.
#pragma once
#include "core/memory.h"
#include "core/pool.h"
#include "core/types.h"

namespace headrace {

// Constants of the numerics version: changing one changes bits.
constexpr i64 kTileK = 32;        // one TDPBF16PS
constexpr i64 kSegmentK = 1024;   // a product's K is summed in segments
constexpr i64 kPartition = 512;   // keys with their own (max, sum, accumulator)
constexpr i64 kColumns = 32;      // outputs that lie together in a packed weight

// What a thread has room for.
constexpr i64 kMaxDim = 512;               // of a head
constexpr i64 kMaxVocab = i64{1} << 18;

// A matrix [n, k] packed once; `type` is that of the activations that it multiplies.
// bf16: [n / 32][k / 32][16 pairs of k][32 columns][2], so that 32 columns by 32 of K are 2 KB, and one product after
// another reads one line after another; padded with zeros.
// f32: [n padded to 4][k padded to 16].
// Within a tile of K, k lies where place_of says.
// Integers of 4 bits (0 to 15) or 8 (−128 to 127), for bf16: [n / 32][k / 32][bits][32 columns] words of 32 bits, of
// which each holds consecutive k, the even ones in its low half and the odd ones in its high half, lowest first. Value
// = scale · integer + minimum, of groups of 32 or 16 along K: [n / 32][k / group][scale, minimum][32 columns], float16
// where all of them are, else float32.
struct PackedWeight {
  Type type = Type::bf16;
  bool is_chained = false;
  i64 n = 0, k = 0, n_padded = 0, k_padded = 0;
  HugeBuffer data;
  int bits = 0;  // 0: not integers
  i64 group = 0;
  bool has_minimum = false, is_half = false;
  HugeBuffer scales;

  // Of one of 32 columns, at a place of K: the number of a bf16, and that of the word that holds an integer.
  i64 value_at(i64 column, i64 place) const { return (place / 2 * kColumns + column) * 2 + place % 2; }
  i64 word_at(i64 column, i64 place) const { return place * bits / 32 * kColumns + column; }
  // How far to shift that word.
  int shift_of(i64 place) const {
    const i64 inside = place % (32 / bits);
    return static_cast<int>(inside % 2 * 16 + inside / 2 * bits);
  }
  i64 tile_bytes() const { return kTileK * kColumns * (bits ? bits : 16) / 8; }
  i64 scale_bytes() const { return is_half ? 2 : 4; }
  i64 group_bytes() const { return (has_minimum ? 2 : 1) * kColumns * scale_bytes(); }
  i64 bytes() const { return data.bytes() + scales.bytes(); }
};

// y = x wᵀ + bias + added, [rows, k] → [rows, n]; y may be f32 where x is bf16.
struct Linear {
  View x;
  const PackedWeight* weight;
  const float* bias;  // [n] or null
  View y;
  View added{};  // f32 [rows, n], or nothing
};

// Looks up rows of a packed table.
struct Embed {
  const i32* token_ids;
  const PackedWeight* table;
  View y;
};

// y = rms_norm(x) · (offset + weight) over groups of `dim` values. y may be bf16 where x is f32.
struct RmsNorm {
  View x, y;
  const float* weight;  // [dim]
  i64 dim;
  float eps, offset;
};

struct LayerNorm {
  View x, y;
  const float *weight, *bias;  // [cols]
  float eps;
};

enum class Activation : int { silu, gelu, gelu_tanh, relu };
struct Glu {
  View gate_up, y;
  Activation activation;
};

struct Activate {
  View x, y;
  Activation activation;
};

struct Add {
  View x, y, out;  // out is of x's type; y may be bf16 where they are f32
};
struct Scale {
  View x, out;
  float factor;
};
struct Gather {
  View x;
  const i32* rows;
  View out;
};

// In place, f32: c · tanh(factor · x / c), or without a cap (0) factor · x.
struct Cap {
  View x;
  float factor, soft_cap;
};

// For each row of f32 logits [T, experts] the `num_chosen` highest, ties to the lowest id, with softmax weights.
struct Route {
  View logits;
  i64 num_chosen;
  bool renormalizes;  // over those chosen
  i32* ids;           // [T, chosen]
  float* weights;     // [T, chosen]
};

// out[t] = Σ over ranks r of weights[t, r] · parts[places[t, r]], in that order, in fp32, rounded once.
struct Combine {
  View parts;  // f32 [T × chosen, hidden]
  const i32* places;
  const float* weights;
  i64 num_chosen;
  View out;
};

// Half-split rotation of [T, heads, dim] by angles [T, turned] (cosines, then sines).
struct Rotate {
  View x, out;
  i64 num_heads, dim;
  const float* angles;
  i64 turned;
};

// Of each block the same bytes of a room that all layers share: what a block takes lies together, and memory is touched
// as blocks are.
struct Pages {
  HugeBuffer room;
  i64 offset = 0, stride = 0;  // bytes, from block to block
  template <class T>
  T* at(i64 block) const {
    return reinterpret_cast<T*>(room.as<char>() + offset + block * stride);
  }
};

// Pages of one layer. Where block_size is a multiple of 16, pages are tiles for the kernel:
//   keys   [block][head][key / 16][dim / 32][16 pairs of dim][16 keys][2]
//   values [block][head][key / unit][dim / 16][unit / 2 pairs of keys][16 dims][2], unit 32 or 16
// with dim padded to 32; otherwise, and in f32, plain [block][head][key][dim padded].
// As codes: the same in bytes, but of the 32 values of a pair first the 16 even ones, then the odd ones. A key's scales
// are apart, [block][head][key]; value = scale · code. What is not finite has the scale NaN and codes of 0.
struct Cache {
  Type type;       // of what attends to it, and of its values where they are not codes
  bool has_codes;  // integers of −127 to 127
  i64 num_blocks, block_size, num_heads, dim, dim_padded;
  i64 unit;  // keys per tile of values; 0: plain pages
  bool is_chained;  // dimensions of keys, and keys of values, lie where place_of says
  Pages keys, values;
  Pages key_scales, value_scales;  // f32
  i64 page_values() const { return num_heads * block_size * dim_padded; }  // values of one block, of K or of V
  i64 page_bytes() const { return page_values() * (has_codes ? 1 : item_bytes(type)); }
  i64 page_keys() const { return num_heads * block_size; }
  i64 scale_bytes() const { return has_codes ? page_keys() * static_cast<i64>(sizeof(float)) : 0; }
  i64 block_bytes() const { return 2 * (page_bytes() + scale_bytes()); }
  // body(start, bytes) for each part of a block.
  template <class Body>
  void each_part(i64 block, Body&& body) const {
    for (const Pages* pages : {&keys, &values}) body(pages->at<char>(block), page_bytes());
    for (const Pages* scales : {&key_scales, &value_scales})
      if (has_codes) body(scales->at<char>(block), scale_bytes());
  }
};

struct Attend {
  View q, k, v;  // [T, heads × dim], [T, kv_heads × dim] twice
  Cache* cache;
  Step step;
  View out;  // [T, heads × dim]
  i64 num_heads;
  float scale;
  i64 window;      // 0: all
  float soft_cap;  // 0: none
};

// Draws N tokens as headrace.ops.draws and .truncation define it; logits stay as they are. Where they are not finite
// numbers the token is 0.
struct Sample {
  View logits;      // f32 [R, vocab]
  i64 count;        // N
  const i32* rows;  // [N] that of the logits, null: the N are the R
  const float *temperature, *top_p;
  const i32* top_k;
  const float* min_p;
  const u64* seeds;
  const i32 *choices, *positions;
  i32* token_ids;   // [N]
  bool* is_finite;  // [N], or null where nobody asks
};

// headrace.ops.base.Logprobs of M rows with K alternatives each; what stands there of a row that is not finite says nothing.
struct Score {
  View logits;
  i64 count;               // M
  const i32* rows;         // [M] or null, as above
  const i32* token_ids;    // [M]
  i64 num_top;
  float* token_logprobs;
  i32* ranks;
  float* sum_smaller_probs;
  i32* top_ids;         // [R, K]
  float* top_logprobs;  // [R, K]
};

constexpr i64 kChains = 8;

struct Kernels {
  void (*linear)(const Linear&, Team&);
  void (*embed)(const Embed&, Team&);
  void (*rms_norm)(const RmsNorm&, Team&);
  void (*layer_norm)(const LayerNorm&, Team&);
  void (*activate)(const Activate&, Team&);
  void (*glu)(const Glu&, Team&);
  void (*add)(const Add&, Team&);
  void (*scale)(const Scale&, Team&);
  void (*cap)(const Cap&, Team&);
  void (*route)(const Route&, Team&);
  void (*combine)(const Combine&, Team&);
  void (*gather)(const Gather&, Team&);
  void (*rotate)(const Rotate&, Team&);
  void (*attend)(const Attend&, Team&);
  void (*sample)(const Sample&, Team&);
  void (*score)(const Score&, Team&);
  float (*chains)(i64 rounds, float factor);  // kChains × 16 multiply-adds a round
};

extern const Kernels kernels_portable;
#if defined(HEADRACE_X86)
extern const Kernels kernels_avx2, kernels_avx512;
#if defined(HEADRACE_AVX512_BF16)
extern const Kernels kernels_avx512_bf16;
bool pairs_are_chained();  // whether this machine's VDPBF16PS adds as place_of wants it
#endif
#if defined(HEADRACE_AMX)
extern const Kernels kernels_amx;
#endif
#endif

}  // namespace headrace
