#include "base/keyed_hash.h"

#include <bit>
#include <cstdio>
#include <cstring>
#include <random>

namespace ortmodule {
namespace {

struct SipState {
  uint64_t a, b, c, d;

  void round() {
    a += b;
    b = std::rotl(b, 13) ^ a;
    a = std::rotl(a, 32);
    c += d;
    d = std::rotl(d, 16) ^ c;
    a += d;
    d = std::rotl(d, 21) ^ a;
    c += b;
    b = std::rotl(b, 17) ^ c;
    c = std::rotl(c, 32);
  }
  void add(uint64_t word) {
    d ^= word;
    round();
    round();
    a ^= word;
  }
};

std::array<uint64_t, 2> drawn_key() {
  std::random_device device;
  const auto word = [&] { return (uint64_t{device()} << 32) | device(); };
  return {word(), word()};
}

}  // namespace

uint64_t sip_hash(std::array<uint64_t, 2> key, std::string_view bytes) {
  SipState state{key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d,
                 key[0] ^ 0x6c7967656e657261, key[1] ^ 0x7465646279746573};
  const auto last = static_cast<uint64_t>(bytes.size()) << 56;
  for (; bytes.size() >= sizeof(uint64_t); bytes.remove_prefix(sizeof(uint64_t))) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof(word));
    state.add(word);
  }
  uint64_t rest = 0;
  std::memcpy(&rest, bytes.data(), bytes.size());
  state.add(last | rest);
  state.c ^= 0xff;
  for (int i = 0; i < 4; ++i) state.round();
  return state.a ^ state.b ^ state.c ^ state.d;
}

std::string keyed_hash(std::string_view bytes) {
  static const std::array<uint64_t, 2> one = drawn_key(), other = drawn_key();
  char text[33];
  std::snprintf(text, sizeof(text), "%016llx%016llx",
                static_cast<unsigned long long>(sip_hash(one, bytes)),
                static_cast<unsigned long long>(sip_hash(other, bytes)));
  return text;
}

}  // namespace ortmodule
