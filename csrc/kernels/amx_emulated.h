// The tile instructions of AMX in plain C++, as Intel's manual defines them, so that the kernels which use them can be
// tried on a processor that lacks them. What the processor would refuse ends the process with the reason.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace headrace::HEADRACE_NS {

class EmulatedTiles {
 public:
  static EmulatedTiles& here() {
    static thread_local EmulatedTiles tiles;
    return tiles;
  }

  void configure(const void* memory) {
    const unsigned char* bytes = static_cast<const unsigned char*>(memory);
    is_configured_ = true;
    require(bytes[0] == 1 && bytes[1] == 0, "palette 1 and start row 0");
    for (int i = 2; i < 16; i++) require(bytes[i] == 0, "reserved bytes of 0");
    for (int t = 0; t < kTiles; t++) {
      std::memcpy(&tiles_[t].bytes_per_row, bytes + 16 + 2 * t, 2);
      tiles_[t].rows = bytes[48 + t];
      require(tiles_[t].rows <= kRows && tiles_[t].bytes_per_row <= kBytes, "at most 16 rows of 64 bytes");
      std::memset(tiles_[t].data, 0, sizeof tiles_[t].data);
    }
  }

  void release() { is_configured_ = false; }
  void zero(int t) { std::memset(tile(t).data, 0, sizeof tiles_[t].data); }

  void load(int t, const void* from, i64 stride) {
    Tile& to = tile(t);
    zero(t);
    for (int r = 0; r < to.rows; r++) std::memcpy(to.data[r], static_cast<const char*>(from) + r * stride, to.bytes_per_row);
  }

  void store(int t, void* to, i64 stride) {
    Tile& from = tile(t);
    for (int r = 0; r < from.rows; r++) std::memcpy(static_cast<char*>(to) + r * stride, from.data[r], from.bytes_per_row);
  }

  // TDPBF16PS: per row and column two chains from 0, over the even and the odd values of K, added to C as one sum.
  void multiply(int c, int a, int b) {
    Tile &sums = tile(c), &left = tile(a), &right = tile(b);
    require(c != a && c != b && a != b, "three different tiles");
    require(sums.rows == left.rows && sums.bytes_per_row == right.bytes_per_row && left.bytes_per_row == right.rows * 4,
            "tiles whose shapes fit");
    for (int m = 0; m < sums.rows; m++) {
      float even[16] = {}, odd[16] = {};
      for (int k = 0; k < left.bytes_per_row / 4; k++)
        for (int n = 0; n < sums.bytes_per_row / 4; n++) {
          even[n] = add_product(even[n], left.value(m, 2 * k), right.value(k, 2 * n));
          odd[n] = add_product(odd[n], left.value(m, 2 * k + 1), right.value(k, 2 * n + 1));
        }
      for (int n = 0; n < sums.bytes_per_row / 4; n++) {
        float sum;
        std::memcpy(&sum, sums.data[m] + 4 * n, 4);
        sum = flushed(sum + flushed(even[n] + odd[n]));
        std::memcpy(sums.data[m] + 4 * n, &sum, 4);
      }
    }
  }

 private:
  static constexpr int kTiles = 8, kRows = 16, kBytes = 64;
  struct Tile {
    u16 bytes_per_row = 0;
    int rows = 0;
    unsigned char data[kRows][kBytes];
    float value(int row, int i) const {
      u16 half;
      std::memcpy(&half, data[row] + 2 * i, 2);
      const u32 bits = u32{half} << 16;
      float x;
      std::memcpy(&x, &bits, 4);
      return flushed(x);
    }
  };

  static float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }
  static float add_product(float sum, float x, float y) { return flushed(__builtin_fmaf(x, y, sum)); }
  static void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "AMX: this needs %s\n", what);
    std::abort();
  }
  Tile& tile(int t) {
    require(is_configured_, "tiles that are configured");
    require(0 <= t && t < kTiles, "one of eight tiles");
    return tiles_[t];
  }

  bool is_configured_ = false;
  Tile tiles_[kTiles];
};

}  // namespace headrace::HEADRACE_NS

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(from) EmulatedTiles::here().configure(from)
#define _tile_release() EmulatedTiles::here().release()
#define _tile_zero(t) EmulatedTiles::here().zero(t)
#define _tile_loadd(t, from, stride) EmulatedTiles::here().load(t, from, stride)
#define _tile_stored(t, to, stride) EmulatedTiles::here().store(t, to, stride)
#define _tile_dpbf16ps(c, a, b) EmulatedTiles::here().multiply(c, a, b)
