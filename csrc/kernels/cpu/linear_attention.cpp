// LinearAttention. The columns of a state do not meet: a few vectors of them, which the first-level
// cache holds, go through all of time.
#include <cmath>
#include <cstring>

#include "kernels/cpu/float_vec.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

struct LinearShape {
  int64_t batch = 0, steps = 0, q_heads = 0, heads = 0, keys = 0, values = 0;
  int64_t decays = 0, betas = 0;  // of a row; 0: none

  explicit LinearShape(const StepFacts& facts) {
    const Attrs& attrs = facts.node().attrs;
    const Sizes &q = facts.inputs[0].layout.sizes, &state = facts.node().output_sizes[1];
    batch = q[0];
    steps = q[1];
    q_heads = attrs.integer("q_num_heads");
    heads = attrs.integer("kv_num_heads");
    keys = state[2];
    values = state[3];
    const auto width = [&](size_t i) {
      const bool has = i < facts.inputs.size() && facts.inputs[i].dtype != DType::Undefined;
      return has ? facts.inputs[i].layout.sizes[2] : int64_t{0};
    };
    decays = width(4);
    betas = width(5);
  }
};

/// What the steps of one head read.
struct LinearHead {
  const float *q = nullptr, *k = nullptr, *v = nullptr;
  const float* decay = nullptr;  // factors; null: none
  const float* beta = nullptr;   // null: nothing is corrected
  int64_t decay_step = 0;        // from key to key; 0: one for all
  float* y = nullptr;
  float* state = nullptr;
};

template <int kVectors>
using Columns = FloatVec[kVectors];

/// Columns [column, column + count) of a head through all of time; `count` is kVectors vectors, or
/// with one vector at most one.
template <int kVectors>
void run_columns(const LinearShape& s, const LinearHead& head, int64_t column, int64_t count,
                 float scale) {
  constexpr int64_t kLanes = FloatVec::kCount;
  const int64_t last = count - (kVectors - 1) * kLanes, group = s.q_heads / s.heads;
  const auto load = [&](const float* from, Columns<kVectors>& to) {
    ORTM_UNROLL
    for (int i = 0; i < kVectors; ++i)
      to[i] = i + 1 == kVectors && last < kLanes ? FloatVec::load(from + i * kLanes, last)
                                                 : FloatVec::load(from + i * kLanes);
  };
  const auto store = [&](const Columns<kVectors>& from, float* to) {
    ORTM_UNROLL
    for (int i = 0; i < kVectors; ++i)
      i + 1 == kVectors&& last < kLanes ? from[i].store(to + i * kLanes, last)
                                        : from[i].store(to + i * kLanes);
  };
  const auto clear = [](Columns<kVectors>& sums) {
    ORTM_UNROLL
    for (FloatVec& sum : sums) sum = FloatVec(0.0f);
  };
  for (int64_t t = 0; t < s.steps; ++t) {
    const float* k = head.k + t * s.heads * s.keys;
    Columns<kVectors> change, row, sums;
    load(head.v + t * s.heads * s.values + column, change);
    if (head.decay || head.beta) {
      const float* decay = head.decay ? head.decay + t * s.decays : nullptr;
      clear(sums);
      for (int64_t i = 0; i < s.keys; ++i) {
        float* at = head.state + i * s.values + column;
        load(at, row);
        const FloatVec key(k[i]), kept(decay ? decay[i * head.decay_step] : 1.0f);
        ORTM_UNROLL
        for (int c = 0; c < kVectors; ++c) {
          row[c] = row[c] * kept;
          sums[c] = multiply_add(row[c], key, sums[c]);
        }
        if (decay) store(row, at);
      }
      if (head.beta) {
        const FloatVec rate(head.beta[t * s.betas]);
        ORTM_UNROLL
        for (int c = 0; c < kVectors; ++c) change[c] = (change[c] - sums[c]) * rate;
      }
    }
    for (int64_t g = 0; g < group; ++g) {
      const float* q = head.q + (t * s.q_heads + g) * s.keys;
      clear(sums);
      for (int64_t i = 0; i < s.keys; ++i) {
        float* at = head.state + i * s.values + column;
        load(at, row);
        const FloatVec query(q[i]), key(k[i]);
        if (g == 0) {
          ORTM_UNROLL
          for (int c = 0; c < kVectors; ++c) row[c] = multiply_add(key, change[c], row[c]);
          store(row, at);
        }
        ORTM_UNROLL
        for (int c = 0; c < kVectors; ++c) sums[c] = multiply_add(row[c], query, sums[c]);
      }
      ORTM_UNROLL
      for (FloatVec& sum : sums) sum = sum * FloatVec(scale);
      store(sums, head.y + (t * s.q_heads + g) * s.values + column);
    }
  }
}

void linear_attention(const KernelArgs& args) {
  const LinearShape s(args.facts);
  const Attrs& attrs = args.facts.node().attrs;
  auto scale = static_cast<float>(attrs.number("scale"));
  if (scale == 0.0f) scale = 1.0f / std::sqrt(static_cast<float>(s.keys));
  const auto operand = [&](size_t i) {
    return i < args.in.size() && args.in[i].data ? args.in[i].as<float>() : nullptr;
  };
  auto* state = args.out[1].as<float>();
  const int64_t states = s.batch * s.heads, size = s.keys * s.values;
  const size_t bytes = static_cast<size_t>(states * size) * sizeof(float);
  if (const float* past = operand(3); past && past != state)
    std::memcpy(state, past, bytes);
  else if (!past)
    std::memset(state, 0, bytes);
  auto* factors = static_cast<float*>(args.workspace);
  const float* decay = operand(4);
  const int64_t decays = s.batch * s.steps * s.decays;
  parallel_ranges(args.context, decay ? decays : 0, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) factors[i] = std::exp(decay[i]);
  });
  constexpr int64_t kWide = 4 * FloatVec::kCount;
  const int64_t blocks = ceil_div(s.values, kWide);
  const int64_t each = std::max<int64_t>(1, s.steps * s.keys * kWide);
  const auto run_block = [&](int64_t unit) {
    const int64_t b = unit / blocks / s.heads, h = unit / blocks % s.heads;
    const int64_t row = b * s.steps, group = s.q_heads / s.heads;
    const bool by_key = s.decays > s.heads;
    LinearHead head;
    head.q = operand(0) + (row * s.q_heads + h * group) * s.keys;
    head.k = operand(1) + (row * s.heads + h) * s.keys;
    head.v = operand(2) + (row * s.heads + h) * s.values;
    if (decay) head.decay = factors + row * s.decays + h * (by_key ? s.keys : 1);
    head.decay_step = by_key ? 1 : 0;
    if (const float* beta = operand(5)) head.beta = beta + row * s.betas + (s.betas > 1 ? h : 0);
    head.y = args.out[0].as<float>() + (row * s.q_heads + h * group) * s.values;
    head.state = state + (b * s.heads + h) * size;
    int64_t column = unit % blocks * kWide;
    const int64_t end = std::min(s.values, column + kWide);
    if (end - column == kWide) return run_columns<4>(s, head, column, kWide, scale);
    for (; column < end; column += FloatVec::kCount)
      run_columns<1>(s, head, column, std::min(FloatVec::kCount, end - column), scale);
  };
  parallel_ranges(args.context, states * blocks, ceil_div(1 << 16, each),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t unit = begin; unit < end; ++unit) run_block(unit);
                  });
}

size_t workspace_bytes(const StepFacts& facts) {
  const LinearShape s(facts);
  return static_cast<size_t>(s.batch * s.steps * s.decays) * sizeof(float);
}

REGISTER_CPU_KERNEL({.op = "LinearAttention",
                     .name = "linear_attention_cpu",
                     .dtypes = {DType::Float32},
                     .run = linear_attention,
                     .workspace_bytes = workspace_bytes});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
