// Which instruction sets there are, which this machine has, and which one runs.
#pragma once
#include <string>
#include <vector>

namespace headrace {

enum class Isa : int { portable, avx2, avx512, avx512_bf16, amx };

const char* isa_name(Isa isa);
// What was compiled in, runs here and gives the same bits, from slowest to fastest.
std::vector<Isa> usable_isas();
// The fastest usable one, or the one named `forced` (empty: no wish). Throws std::invalid_argument for an unusable name.
Isa choose_isa(const std::string& forced);

}  // namespace headrace
