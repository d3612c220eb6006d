// The same dot product by AMX tiles. A row's bits do not depend on how many rows a tile holds.
#pragma once

namespace headrace::HEADRACE_NS {

struct AmxDot {
  using Value = u16;
  using Integers = FmaDot;
  template <class Tiles>
  static constexpr int kMaxRows = 32;
  static constexpr bool fetches_one_pass = true;

  struct alignas(64) Shape {
    unsigned char palette = 1, start_row = 0, reserved[14] = {};
    u16 bytes_per_row[16] = {};
    unsigned char rows[16] = {};
  };

  static void enter() { configured() = 0; }
  static void leave() { _tile_release(); }
  static void put(u16* to, F16 x) { store_bf16(to, x); }
  static F16 get(const u16* from) { return load_bf16(from); }

  // Tiles 0–3: C of rows 0–15 and 16–31 by two column halves; 4, 5: A; 6, 7: B.
  static void configure(int num_rows) {
    if (configured() == num_rows) return;
    const int first = num_rows < 16 ? num_rows : 16, second = num_rows > 16 ? num_rows - 16 : 1;
    Shape shape;
    for (int t = 0; t < 8; t++) {
      shape.bytes_per_row[t] = 64;
      shape.rows[t] = 16;
    }
    shape.rows[0] = shape.rows[1] = shape.rows[4] = static_cast<unsigned char>(first);
    shape.rows[2] = shape.rows[3] = shape.rows[5] = static_cast<unsigned char>(second);
    _tile_loadconfig(&shape);
    configured() = num_rows;
  }

  // Sixteen pairs, one behind another by `stride` bytes.
  struct Tile {
    const u16* at;
    i64 stride;
  };

  // A tile of B whose halves lie apart is put together first.
  template <class Tiles>
  static Tile whole(const Tiles& b, i64 k, int c, u16* room) {
    const u16 *low = b.at(k, c, 0), *high = b.at(k, c, 1);
    if (high == low + 8 * Tiles::kPair) return {low, 2 * Tiles::kPair};
    static_assert(Tiles::kPair == 32 || Tiles::kPair == DenseTiles::kPair);
    std::memcpy(room, low, 512);
    std::memcpy(room + 256, high, 512);
    return {room, 64};
  }

  template <class Tiles, class Fetch, class Put>
  static void panel(int num_rows, const u16* a, i64 lda, const Tiles& b, i64 num_tiles, Fetch& ahead, const Put& put) {
    configure(num_rows);
    const bool is_tall = num_rows > 16;
    alignas(64) u16 room[2][512];
    alignas(64) float out[kMaxRows<Tiles> * kColumns];
    _tile_zero(0);
    _tile_zero(1);
    if (is_tall) {
      _tile_zero(2);
      _tile_zero(3);
    }
    for (i64 k = 0; k < num_tiles; k++) {
      ahead.fetch();
      const Tile left = whole(b, k, 0, room[0]), right = whole(b, k, 1, room[1]);
      _tile_loadd(4, a + k * 32, lda * 2);
      _tile_loadd(6, left.at, left.stride);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, right.at, right.stride);
      _tile_dpbf16ps(1, 4, 7);
      if (is_tall) {
        _tile_loadd(5, a + 16 * lda + k * 32, lda * 2);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, out, 128);
    _tile_stored(1, out + 16, 128);
    if (is_tall) {
      _tile_stored(2, out + 16 * 32, 128);
      _tile_stored(3, out + 16 * 32 + 16, 128);
    }
    for (int r = 0; r < num_rows; r++) put(r, load(out + r * kColumns), load(out + r * kColumns + 16));
  }

 private:
  static int& configured() {
    static thread_local int rows = 0;
    return rows;
  }
};

}  // namespace headrace::HEADRACE_NS
