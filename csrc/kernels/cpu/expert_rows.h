// ExpertMatMul: the rows of each expert, gathered a few hundred at a time, so that its weights are
// read once for all of them.
#pragma once

#include <cstring>

#include "kernels/cpu/block_product.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Rows that are gathered at a time.
inline constexpr int64_t kMostExpertRows = 256;

struct ExpertShape {
  int64_t tokens = 0, each = 0, inner = 0, columns = 0, experts = 0;
  bool shares_x = false;  // the experts of a token read one row

  explicit ExpertShape(const StepFacts& facts) {
    const Attrs& attrs = facts.node().attrs;
    const Sizes& y = facts.outputs[0].layout.sizes;
    tokens = y[0];
    each = y[1];
    columns = y[2];
    inner = attrs.integer("K");
    experts = facts.inputs[2].layout.sizes[0];
    shares_x = facts.inputs[0].layout.sizes.size() == 2;
  }
  int64_t pairs() const { return tokens * each; }
  int64_t rows() const { return std::min(pairs(), kMostExpertRows); }
};

inline size_t expert_workspace(const StepFacts& facts) {
  const ExpertShape s(facts);
  return static_cast<size_t>(s.rows() * (s.inner + s.columns)) * sizeof(float) +
         static_cast<size_t>(s.pairs() + s.experts + 1) * sizeof(int64_t);
}

/// multiply(expert, rows): y = x times the weights of that expert. Pairs of a token and an expert
/// that does not exist give 0.
template <class Multiply>
void multiply_by_expert(const KernelArgs& args, const Multiply& multiply) {
  const ExpertShape s(args.facts);
  const auto* x = args.in[0].as<float>();
  const auto* ids = args.in[1].as<int64_t>();
  auto* y = args.out[0].as<float>();
  auto* order = static_cast<int64_t*>(args.workspace);
  int64_t* ends = order + s.pairs();
  auto* gathered = reinterpret_cast<float*>(ends + s.experts + 1);
  float* sums = gathered + s.rows() * s.inner;
  const auto bytes = [](int64_t count) { return static_cast<size_t>(count) * sizeof(float); };
  std::fill_n(ends, s.experts + 1, int64_t{0});
  const auto known = [&](int64_t pair) { return ids[pair] >= 0 && ids[pair] < s.experts; };
  for (int64_t pair = 0; pair < s.pairs(); ++pair) {
    if (known(pair))
      ++ends[ids[pair] + 1];
    else
      std::fill_n(y + pair * s.columns, s.columns, 0.0f);
  }
  for (int64_t e = 0; e < s.experts; ++e) ends[e + 1] += ends[e];
  for (int64_t pair = 0; pair < s.pairs(); ++pair)
    if (known(pair)) order[ends[ids[pair]]++] = pair;  // an expert's rows end at its place now
  for (int64_t e = 0, first = 0; e < s.experts; ++e)
    for (; first < ends[e];) {
      const int64_t count = std::min(kMostExpertRows, ends[e] - first);
      for (int64_t r = 0; r < count; ++r) {
        const int64_t pair = order[first + r];
        std::memcpy(gathered + r * s.inner, x + (s.shares_x ? pair / s.each : pair) * s.inner,
                    bytes(s.inner));
      }
      multiply(e, ProductRows{gathered, sums, count, s.inner, s.columns});
      for (int64_t r = 0; r < count; ++r)
        std::memcpy(y + order[first + r] * s.columns, sums + r * s.columns, bytes(s.columns));
      first += count;
    }
}

/// Those of an expert; operands 2 to 4.
inline BlockWeights expert_weights(const KernelArgs& args, int64_t expert) {
  const Attrs& attrs = args.facts.node().attrs;
  const int64_t bits = attrs.integer("bits"), columns = attrs.integer("N");
  BlockWeights w;
  w.size = attrs.integer("block_size");
  w.count = ceil_div(attrs.integer("K"), w.size);
  const int64_t blocks = columns * w.count;
  w.bytes = args.in[2].as<uint8_t>() + expert * blocks * (w.size * bits / 8);
  w.scales = args.in[3].as<float>() + expert * blocks;
  if (args.in.size() > 4 && args.in[4].data)
    w.zeros = args.in[4].as<uint8_t>() + expert * columns * ((w.count * bits + 7) / 8);
  return w;
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
