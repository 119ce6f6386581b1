// LinearAttention. The columns of a state do not meet: a thread takes one of them through all of
// time, and neighbours read its rows together.
#include <cmath>

#include "kernels/cuda/launch.cuh"

namespace ortmodule::cuda {
namespace {

constexpr int kThreads = 64;

struct LinearSteps {
  int64_t columns = 0;  // of all states
  int64_t steps = 0, q_heads = 0, heads = 0, keys = 0, values = 0;
  int64_t decays = 0, betas = 0;  // of a row; 0: none
  float scale = 1.0f;
  const float *q = nullptr, *k = nullptr, *v = nullptr, *past = nullptr, *decay = nullptr,
              *beta = nullptr;
  float *y = nullptr, *state = nullptr;
};

__global__ __launch_bounds__(kThreads) void linear_attention_cuda(ORTM_GRID_CONSTANT(LinearSteps)
                                                                      s) {
  const int64_t place = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (place >= s.columns) return;
  const int64_t column = place % s.values, head = place / s.values % s.heads;
  const int64_t batch = place / s.values / s.heads, group = s.q_heads / s.heads;
  const bool by_key = s.decays > s.heads;
  const int64_t first = (batch * s.heads + head) * s.keys * s.values + column;
  float* state = s.state + first;
  for (int64_t i = 0; i < s.keys; ++i)
    state[i * s.values] = s.past ? s.past[first + i * s.values] : 0.0f;
  for (int64_t t = 0; t < s.steps; ++t) {
    const int64_t row = batch * s.steps + t;
    const float* k = s.k + (row * s.heads + head) * s.keys;
    float change = s.v[(row * s.heads + head) * s.values + column];
    if (s.decays > 0 || s.betas > 0) {
      const float* decay =
          s.decays > 0 ? s.decay + row * s.decays + head * (by_key ? s.keys : 1) : nullptr;
      float known = 0.0f;
      for (int64_t i = 0; i < s.keys; ++i) {
        float element = state[i * s.values];
        if (decay) state[i * s.values] = element = element * std::exp(decay[by_key ? i : 0]);
        known += element * k[i];
      }
      if (s.betas > 0) change = (change - known) * s.beta[row * s.betas + (s.betas > 1 ? head : 0)];
    }
    for (int64_t g = 0; g < group; ++g) {
      const int64_t query = row * s.q_heads + head * group + g;
      float sum = 0.0f;
      for (int64_t i = 0; i < s.keys; ++i) {
        float element = state[i * s.values];
        if (g == 0) state[i * s.values] = element = element + k[i] * change;
        sum += element * s.q[query * s.keys + i];
      }
      s.y[query * s.values + column] = sum * s.scale;
    }
  }
}

void run_linear_attention(const KernelArgs& args) {
  const Attrs& attrs = args.facts.node().attrs;
  const auto operand = [&](size_t i) -> const float* {
    return i < args.in.size() && args.in[i].data ? args.in[i].as<float>() : nullptr;
  };
  LinearSteps s;
  s.steps = args.in[0].sizes[1];
  s.q_heads = attrs.integer("q_num_heads");
  s.heads = attrs.integer("kv_num_heads");
  s.keys = args.out[1].sizes[2];
  s.values = args.out[1].sizes[3];
  s.columns = args.in[0].sizes[0] * s.heads * s.values;
  s.decay = operand(4);
  s.beta = operand(5);
  s.decays = s.decay ? args.in[4].sizes[2] : 0;
  s.betas = s.beta ? args.in[5].sizes[2] : 0;
  s.scale = static_cast<float>(attrs.number("scale"));
  if (s.scale == 0.0f) s.scale = 1.0f / std::sqrt(static_cast<float>(s.keys));
  s.q = operand(0);
  s.k = operand(1);
  s.v = operand(2);
  s.past = operand(3);
  s.y = args.out[0].as<float>();
  s.state = args.out[1].as<float>();
  ORTM_LAUNCH(linear_attention_cuda, grid_of(blocks_for(s.columns, kThreads)), kThreads, 0,
              args.context, s);
}

REGISTER_KERNEL({.op = "LinearAttention",
                 .name = "linear_attention_cuda",
                 .device = Device::CUDA,
                 .dtypes = {DType::Float32},
                 .run = run_linear_attention});

}  // namespace
}  // namespace ortmodule::cuda
