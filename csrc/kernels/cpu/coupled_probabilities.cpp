// Pairwise coupling, with libsvm's start, order of updates and end: p minimizes p' Q p with
// Q[i, i] = sum of r[j, i]^2 and Q[i, j] = -r[j, i] r[i, j]. Rows in parallel, the matrix of a row
// on the stack where it fits.
#include <cmath>

#include "kernels/cpu/cpu_kernel.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

constexpr int64_t kStackClasses = 64;
constexpr float kLeast = 1e-7f;  // of a pair's probability, and of the other class

/// Of one row: Q, Qp and p.
struct Coupling {
  int64_t classes;
  float *q, *qp, *p;
};

constexpr int64_t scratch_floats(int64_t classes) { return classes * (classes + 2); }

void fill(const Coupling& c, const float* pairs) {
  const int64_t n = c.classes;
  std::fill_n(c.q, n * n, 0.0f);
  for (int64_t i = 0; i < n; ++i) {
    c.p[i] = 1.0f / static_cast<float>(n);
    for (int64_t j = i + 1; j < n; ++j) {
      const float r = std::min(std::max(*pairs++, kLeast), 1 - kLeast), other = 1 - r;
      c.q[i * n + i] += other * other;
      c.q[j * n + j] += r * r;
      c.q[i * n + j] = c.q[j * n + i] = -other * r;
    }
  }
}

/// Qp and p' Q p; whether the equations hold for p.
bool is_done(const Coupling& c, float& pqp) {
  const int64_t n = c.classes;
  pqp = 0;
  for (int64_t i = 0; i < n; ++i) {
    c.qp[i] = 0;
    for (int64_t j = 0; j < n; ++j) c.qp[i] += c.q[i * n + j] * c.p[j];
    pqp += c.p[i] * c.qp[i];
  }
  float most = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, std::fabs(c.qp[i] - pqp));
  return most < 0.005f / static_cast<float>(n);
}

void solve(const Coupling& c) {
  const int64_t n = c.classes;
  const int64_t rounds = std::max<int64_t>(100, n);
  float pqp = 0;
  for (int64_t round = 0; round < rounds && !is_done(c, pqp); ++round)
    for (int64_t i = 0; i < n; ++i) {
      const float diff = (pqp - c.qp[i]) / c.q[i * n + i], scale = 1 + diff;
      c.p[i] += diff;
      pqp = (pqp + diff * (diff * c.q[i * n + i] + 2 * c.qp[i])) / scale / scale;
      for (int64_t j = 0; j < n; ++j) {
        c.qp[j] = (c.qp[j] + diff * c.q[i * n + j]) / scale;
        c.p[j] /= scale;
      }
    }
}

void run_coupled(const KernelArgs& args) {
  const int64_t rows = args.in[0].sizes[0], pairs = args.in[0].sizes[1],
                classes = args.out[0].sizes[1];
  parallel_ranges(
      args.context, rows, grain_for(classes * classes * 8), [&](int64_t begin, int64_t end) {
        float scratch[scratch_floats(kStackClasses)];  // NOLINT: filled for each row
        for (int64_t row = begin; row < end; ++row) {
          float* q = classes <= kStackClasses
                         ? scratch
                         : static_cast<float*>(args.workspace) + row * scratch_floats(classes);
          const Coupling c{classes, q, q + classes * classes,
                           args.out[0].as<float>() + row * classes};
          fill(c, args.in[0].as<const float>() + row * pairs);
          solve(c);
        }
      });
}

size_t coupled_workspace(const StepFacts& facts) {
  const Sizes& sizes = facts.outputs[0].layout.sizes;
  if (sizes[1] <= kStackClasses) return 0;
  return static_cast<size_t>(sizes[0] * scratch_floats(sizes[1])) * sizeof(float);
}

REGISTER_CPU_KERNEL({.op = "CoupledProbabilities",
                     .name = "coupled_probabilities_cpu",
                     .dtypes = DTypeSet{DType::Float32},
                     .run = run_coupled,
                     .workspace_bytes = coupled_workspace});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
