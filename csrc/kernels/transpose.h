// Rows to columns where no instructions do it.
#pragma once

namespace headrace::HEADRACE_NS {

inline void transpose(I16 (&rows)[16]) {
  i32 from[16][16], to[16];
  for (int i = 0; i < 16; i++) store_words(from[i], rows[i]);
  for (int i = 0; i < 16; i++) {
    for (int j = 0; j < 16; j++) to[j] = from[j][i];
    rows[i] = load_words(to);
  }
}

}  // namespace headrace::HEADRACE_NS
