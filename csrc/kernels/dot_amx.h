// The same dot product by AMX tiles. A row's bits do not depend on how many rows a tile holds.
#pragma once

namespace headrace::HEADRACE_NS {

struct AmxDot {
  using Value = u16;
  using Integers = AmxDot;
  template <class Tiles>
  static constexpr int kMaxRows = 32;
  static constexpr bool fetches_one_pass = true;
  static constexpr bool reads_integers = false;

  struct alignas(64) Shape {
    unsigned char palette = 1, start_row = 0, reserved[14] = {};
    u16 bytes_per_row[16] = {};
    unsigned char rows[16] = {};
  };

  static void enter() { configured() = 0; }
  static void leave() { _tile_release(); }
  static void put(u16* to, F16 x) { store_bf16(to, x); }
  static F16 get(const u16* from) { return load_bf16(from); }

  // Tiles 0–3: C of rows 0–15 and 16–31 by two column halves; 4, 5: A; 6, 7: B, of `num_pairs` pairs of K.
  static void configure(int num_rows, int num_pairs) {
    const int wanted = num_rows * 32 + num_pairs;
    if (configured() == wanted) return;
    const int first = num_rows < 16 ? num_rows : 16, second = num_rows > 16 ? num_rows - 16 : 1;
    Shape shape;
    for (int t = 0; t < 8; t++) shape.bytes_per_row[t] = 64;
    shape.bytes_per_row[4] = shape.bytes_per_row[5] = static_cast<u16>(4 * num_pairs);
    shape.rows[0] = shape.rows[1] = shape.rows[4] = static_cast<unsigned char>(first);
    shape.rows[2] = shape.rows[3] = shape.rows[5] = static_cast<unsigned char>(second);
    shape.rows[6] = shape.rows[7] = static_cast<unsigned char>(num_pairs);
    _tile_loadconfig(&shape);
    configured() = wanted;
  }

  // Sixteen pairs, one behind another by `stride` bytes.
  struct Tile {
    const u16* at;
    i64 stride;
    Tile half(int h) const { return {at + h * 8 * stride / 2, stride}; }
  };

  // A tile of B whose halves lie apart is put together first, and one of integers made bf16.
  template <class Tiles>
  static Tile whole(const Tiles& b, i64 k, int c, u16* room) {
    if constexpr (is_ready<Tiles>) {
      const u16 *low = b.at(k, c, 0), *high = b.at(k, c, 1);
      if (high == low + 8 * Tiles::kPair) return {low, 2 * Tiles::kPair};
      static_assert(Tiles::kPair == 32 || Tiles::kPair == DenseTiles::kPair);
      std::memcpy(room, low, 512);
      std::memcpy(room + 256, high, 512);
    } else {
      for (int p = 0; p < 16; p++) {
        F16 low, high;
        pair_of(b, k, c, p / 8, p % 8, low, high);
        store_pair(room + p * 32, low, high);
      }
    }
    return {room, 64};
  }

  static void zero(bool is_tall) {
    _tile_zero(0);
    _tile_zero(1);
    if (!is_tall) return;
    _tile_zero(2);
    _tile_zero(3);
  }

  // To −0 the sum of a group is added as it is, whatever its sign.
  static void zero_below(bool is_tall) {
    alignas(64) static constexpr Lines below = [] {
      Lines lines{};
      for (float& x : lines.values) x = -0.0f;
      return lines;
    }();
    _tile_loadd(0, below.values, 64);
    _tile_loadd(1, below.values, 64);
    if (!is_tall) return;
    _tile_loadd(2, below.values, 64);
    _tile_loadd(3, below.values, 64);
  }

  static void multiply(const u16* a, i64 lda, bool is_tall, Tile left, Tile right) {
    _tile_loadd(4, a, lda * 2);
    _tile_loadd(6, left.at, left.stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, right.at, right.stride);
    _tile_dpbf16ps(1, 4, 7);
    if (!is_tall) return;
    _tile_loadd(5, a + 16 * lda, lda * 2);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }

  static void store_sums(float* out, bool is_tall) {
    _tile_stored(0, out, 128);
    _tile_stored(1, out + 16, 128);
    if (!is_tall) return;
    _tile_stored(2, out + 16 * 32, 128);
    _tile_stored(3, out + 16 * 32 + 16, 128);
  }

  template <class Tiles, class Fetch, class Put>
  static void panel(int num_rows, const u16* a, i64 lda, const Tiles& b, i64 num_tiles, Fetch& ahead, const Put& put) {
    alignas(64) float out[kMaxRows<Tiles> * kColumns];
    if constexpr (is_grouped<Tiles>) sum_groups(num_rows, a, lda, b, num_tiles, ahead, out);
    else sum_all(num_rows, a, lda, b, num_tiles, ahead, out);
    for (int r = 0; r < num_rows; r++) put(r, load(out + r * kColumns), load(out + r * kColumns + 16));
  }

  template <class Tiles, class Fetch>
  static void sum_all(int num_rows, const u16* a, i64 lda, const Tiles& b, i64 num_tiles, Fetch& ahead, float* out) {
    configure(num_rows, 16);
    const bool is_tall = num_rows > 16;
    alignas(64) u16 room[2][512];
    zero(is_tall);
    for (i64 k = 0; k < num_tiles; k++) {
      ahead.fetch();
      multiply(a + k * 32, lda, is_tall, whole(b, k, 0, room[0]), whole(b, k, 1, room[1]));
    }
    store_sums(out, is_tall);
  }

  // Groups of 32 or 16 of K, each by itself, joined outside of the tiles.
  template <class Tiles, class Fetch>
  static void sum_groups(int num_rows, const u16* a, i64 lda, const Tiles& b, i64 num_tiles, Fetch& ahead, float* total) {
    const int per_tile = b.groups.are_short ? 2 : 1;
    configure(num_rows, 16 / per_tile);
    const bool is_tall = num_rows > 16;
    alignas(64) u16 room[2][512];
    alignas(64) float sums[kMaxRows<Tiles> * kColumns];
    for (i64 i = 0; i < num_rows * kColumns; i += 16) store(total + i, set(0.0f));
    for (i64 k = 0; k < num_tiles; k++) {
      ahead.fetch();
      const Tile left = whole(b, k, 0, room[0]), right = whole(b, k, 1, room[1]);
      for (int h = 0; h < per_tile; h++) {
        zero_below(is_tall);
        multiply(a + k * 32 + h * 16, lda, is_tall, left.half(h), right.half(h));
        store_sums(sums, is_tall);
        for (int r = 0; r < num_rows; r++)
          for (int c = 0; c < 2; c++) {
            float* to = total + r * kColumns + c * 16;
            store(to, join(b, load(to), load(sums + r * kColumns + c * 16), k, per_tile == 2 ? h : 1, c, r));
          }
      }
    }
  }

 private:
  struct Lines {
    float values[16 * 16];
  };
  static int& configured() {
    static thread_local int rows = 0;
    return rows;
  }
};

}  // namespace headrace::HEADRACE_NS
