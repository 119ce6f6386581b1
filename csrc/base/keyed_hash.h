// A hash that nobody can find collisions for without its key: it may stand for contents.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace ortmodule {

/// SipHash-2-4 of the bytes.
uint64_t sip_hash(std::array<uint64_t, 2> key, std::string_view bytes);

/// 128 bits, in hexadecimal, by keys that each process draws.
std::string keyed_hash(std::string_view bytes);

}  // namespace ortmodule
