// FourierTransform by Stockham's algorithm (Cochran et al., "What is the fast Fourier transform?",
// 1967): a stage for each factor of the length, from one array to the other, whose results come out
// in order. Several rows are transformed side by side, one in each lane; a single row lets the
// compiler vectorize the inner loop of a stage. An inverse transform is a forward one with real and
// imaginary parts exchanged.
#include <array>
#include <cmath>
#include <memory>
#include <numbers>
#include <vector>

#include "kernels/cpu/float_vec.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

constexpr int64_t kTasks = 4;              // each has four arrays of a row in the workspace
constexpr int64_t kLongestOfLanes = 8192;  // beyond this the arrays of all lanes leave the caches
constexpr int64_t kLargestFactor = 64;

/// One factor of the length: `radix` elements that are `groups` * `stride` apart become one each of
/// neighbouring results.
struct Stage {
  int64_t radix, groups, stride;
  std::vector<double> cosines, sines;  // of result j > 0 in group p, at (j - 1) * groups + p
  std::vector<double> root_cosines, root_sines;  // powers of the root of unity of `radix`
};

struct FourierPlan {
  int64_t length, given, parts, frequencies, rows, row_parts;
  bool inverse, real_result;
  std::vector<Stage> stages;
};

std::vector<int64_t> factors_of(int64_t n) {
  std::vector<int64_t> factors;
  for (; n % 4 == 0; n /= 4) factors.push_back(4);
  for (int64_t f = 2; n > 1; f += f == 2 ? 1 : 2) {
    if (f * f > n) f = n;
    for (; n % f == 0; n /= f) factors.push_back(f);
  }
  return factors;
}

Stage stage_of(int64_t radix, int64_t groups, int64_t stride) {
  Stage stage{radix, groups, stride, {}, {}, {}, {}};
  const double turn = -2 * std::numbers::pi;
  for (int64_t j = 1; j < radix; ++j)
    for (int64_t p = 0; p < groups; ++p) {
      const double angle = turn * static_cast<double>(j * p) / static_cast<double>(radix * groups);
      stage.cosines.push_back(std::cos(angle));
      stage.sines.push_back(std::sin(angle));
    }
  for (int64_t j = 0; j < radix; ++j) {
    const double angle = turn * static_cast<double>(j) / static_cast<double>(radix);
    stage.root_cosines.push_back(std::cos(angle));
    stage.root_sines.push_back(std::sin(angle));
  }
  return stage;
}

std::shared_ptr<FourierPlan> plan_of(const StepFacts& facts, bool with_stages) {
  const Sizes &x = facts.inputs[0].layout.sizes, &y = facts.outputs[0].layout.sizes;
  const Attrs& attrs = facts.node().attrs;
  auto plan = std::make_shared<FourierPlan>();
  plan->length = attrs.integer("length");
  plan->inverse = attrs.flag("inverse");
  plan->parts = x.back();
  plan->real_result = y.back() == 1;
  plan->frequencies = y[y.size() - 2];
  plan->row_parts = x[x.size() - 2] * plan->parts;
  // Of one half of a spectrum, only that counts.
  plan->given = std::min(x[x.size() - 2], plan->real_result ? plan->length / 2 + 1 : plan->length);
  plan->rows = element_count({y.begin(), y.end() - 2});
  int64_t left = plan->length, stride = 1;
  if (with_stages)
    for (const int64_t radix : factors_of(plan->length)) {
      left /= radix;
      plan->stages.push_back(stage_of(radix, left, stride));
      stride *= radix;
    }
  return plan;
}

std::shared_ptr<const void> prepare(const StepFacts& facts) { return plan_of(facts, true); }

/// Elements that a value of type V has side by side.
template <class V>
constexpr int64_t lanes_of() {
  if constexpr (std::is_same_v<V, FloatVec>)
    return FloatVec::kCount;
  else
    return 1;
}

bool takes_lanes(const FourierPlan& plan, DType dtype) {
  return dtype == DType::Float32 && plan.length <= kLongestOfLanes &&
         2 * plan.rows >= FloatVec::kCount;
}

size_t workspace_bytes(const StepFacts& facts) {
  const std::shared_ptr<FourierPlan> plan = plan_of(facts, false);
  const DType dtype = facts.inputs[0].dtype;
  const int64_t lanes = takes_lanes(*plan, dtype) ? FloatVec::kCount : 1;
  return static_cast<size_t>(kTasks * 4 * plan->length * lanes) * size_of(dtype);
}

/// The arrays of a row, or of one row in each lane.
template <class V>
struct Arrays {
  V *re, *im, *next_re, *next_im;

  Arrays(V* memory, int64_t n)
      : re(memory), im(memory + n), next_re(memory + 2 * n), next_im(memory + 3 * n) {}
  void swap() {
    std::swap(re, next_re);
    std::swap(im, next_im);
  }
};

/// body(q) for the places of a group, which lie side by side.
template <class V, class Body>
void for_places(int64_t stride, const Body& body) {
  if constexpr (lanes_of<V>() > 1) {
    for (int64_t q = 0; q < stride; ++q) body(q);
  } else {
    ORTM_SIMD
    for (int64_t q = 0; q < stride; ++q) body(q);
  }
}

template <class V>
struct Complex {
  V re, im;
  friend Complex operator+(const Complex& a, const Complex& b) {
    return {a.re + b.re, a.im + b.im};
  }
  friend Complex operator-(const Complex& a, const Complex& b) {
    return {a.re - b.re, a.im - b.im};
  }
  /// Times -i.
  Complex turned() const { return {im, V(0.0f) - re}; }
  Complex times(V c, V s) const { return {re * c - im * s, re * s + im * c}; }
};

/// Group p of a stage, of which `from` and `to` are its first elements.
template <class V>
class Group {
 public:
  Group(const Stage& stage, const Arrays<V>& at, int64_t p)
      : s_(stage), at_(at), from_(stage.stride * p), to_(stage.stride * stage.radix * p), p_(p) {}

  void run() const {
    if (s_.radix == 4) return run_four();
    if (s_.radix == 2) return run_two();
    run_any();
  }

 private:
  Complex<V> load(int64_t k, int64_t q) const {
    const int64_t at = from_ + k * s_.groups * s_.stride + q;
    return {at_.re[at], at_.im[at]};
  }
  void store(int64_t j, int64_t q, const Complex<V>& value) const {
    const int64_t at = to_ + j * s_.stride + q;
    at_.next_re[at] = value.re;
    at_.next_im[at] = value.im;
  }
  V cosine(int64_t j) const { return V(s_.cosines[static_cast<size_t>((j - 1) * s_.groups + p_)]); }
  V sine(int64_t j) const { return V(s_.sines[static_cast<size_t>((j - 1) * s_.groups + p_)]); }

  void run_two() const {
    const V c = cosine(1), s = sine(1);
    for_places<V>(s_.stride, [&](int64_t q) {
      const Complex<V> a = load(0, q), b = load(1, q);
      store(0, q, a + b);
      store(1, q, (a - b).times(c, s));
    });
  }

  void run_four() const {
    const V c1 = cosine(1), s1 = sine(1), c2 = cosine(2), s2 = sine(2), c3 = cosine(3),
            s3 = sine(3);
    for_places<V>(s_.stride, [&](int64_t q) {
      const Complex<V> a = load(0, q), b = load(1, q), c = load(2, q), d = load(3, q);
      const Complex<V> even = a + c, odd = b + d, apart = a - c, turned = (b - d).turned();
      store(0, q, even + odd);
      store(1, q, (apart + turned).times(c1, s1));
      store(2, q, (even - odd).times(c2, s2));
      store(3, q, (apart - turned).times(c3, s3));
    });
  }

  void run_any() const {
    for (int64_t j = 0; j < s_.radix; ++j) {
      const V c = j == 0 ? V(1.0f) : cosine(j), s = j == 0 ? V(0.0f) : sine(j);
      std::array<V, kLargestFactor> cosines, sines;
      for (int64_t k = 0; k < s_.radix; ++k) {
        const auto root = static_cast<size_t>(j * k % s_.radix);
        cosines[static_cast<size_t>(k)] = V(s_.root_cosines[root]);
        sines[static_cast<size_t>(k)] = V(s_.root_sines[root]);
      }
      for (int64_t q = 0; q < s_.stride; ++q) {
        Complex<V> sum = load(0, q);
        for (int64_t k = 1; k < s_.radix; ++k)
          sum = sum +
                load(k, q).times(cosines[static_cast<size_t>(k)], sines[static_cast<size_t>(k)]);
        store(j, q, j == 0 ? sum : sum.times(c, s));
      }
    }
  }

  const Stage& s_;
  const Arrays<V>& at_;
  int64_t from_, to_, p_;
};

/// Rows of x and y, lane by lane; T is the type of their elements.
template <class T, class V>
class Rows {
 public:
  Rows(const KernelArgs& args, const FourierPlan& plan, V* memory)
      : plan_(plan), x_(args.in[0].as<T>()), y_(args.out[0].as<T>()), at_(memory, plan.length) {}

  void transform(int64_t first, int64_t count) {
    T* parts[2] = {reinterpret_cast<T*>(at_.re), reinterpret_cast<T*>(at_.im)};
    if (plan_.inverse) std::swap(parts[0], parts[1]);
    for (int64_t i = 0; i < 2; ++i) std::fill_n(parts[i], plan_.length * kLanes, T(0));
    for (int64_t lane = 0; lane < count; ++lane)
      load(x_ + (first + lane) * plan_.row_parts, parts[0] + lane, parts[1] + lane);
    for (const Stage& stage : plan_.stages) {
      for (int64_t p = 0; p < stage.groups; ++p) Group<V>(stage, at_, p).run();
      at_.swap();
    }
    T* results[2] = {reinterpret_cast<T*>(at_.re), reinterpret_cast<T*>(at_.im)};
    if (plan_.inverse) std::swap(results[0], results[1]);
    const int64_t width = plan_.frequencies * (plan_.real_result ? 1 : 2);
    for (int64_t lane = 0; lane < count; ++lane)
      store(results[0] + lane, results[1] + lane, y_ + (first + lane) * width);
  }

 private:
  static constexpr int64_t kLanes = lanes_of<V>();

  void load(const T* x, T* re, T* im) const {
    for (int64_t i = 0; i < plan_.given; ++i) {
      re[i * kLanes] = x[i * plan_.parts];
      if (plan_.parts == 2) im[i * kLanes] = x[i * plan_.parts + 1];
    }
    if (!plan_.real_result) return;
    // The other half mirrors this one, but for the first and the middle.
    im[0] = 0;
    for (int64_t i = 1; i < plan_.given; ++i) {
      const int64_t mirrored = plan_.length - i;
      if (mirrored == i) {
        im[i * kLanes] = 0;
      } else {
        re[mirrored * kLanes] = re[i * kLanes];
        im[mirrored * kLanes] = -im[i * kLanes];
      }
    }
  }

  void store(const T* re, const T* im, T* y) const {
    const T factor = plan_.inverse ? T(1) / static_cast<T>(plan_.length) : T(1);
    if (plan_.real_result) {
      for (int64_t k = 0; k < plan_.frequencies; ++k) y[k] = re[k * kLanes] * factor;
    } else {
      for (int64_t k = 0; k < plan_.frequencies; ++k) {
        y[2 * k] = re[k * kLanes] * factor;
        y[2 * k + 1] = im[k * kLanes] * factor;
      }
    }
  }

  const FourierPlan& plan_;
  const T* x_;
  T* y_;
  Arrays<V> at_;
};

template <class T, class V>
void transform_rows(const KernelArgs& args, const FourierPlan& plan) {
  constexpr int64_t kLanes = lanes_of<V>();
  const int64_t groups = ceil_div(plan.rows, kLanes), tasks = std::min(kTasks, groups);
  if (tasks == 0) return;
  const int64_t work = ceil_div(groups, tasks) * kLanes * plan.length * 8;
  parallel_ranges(args.context, tasks, grain_for(work), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      Rows<T, V> rows(args, plan, static_cast<V*>(args.workspace) + task * 4 * plan.length);
      for (int64_t i = groups * task / tasks; i < groups * (task + 1) / tasks; ++i)
        rows.transform(i * kLanes, std::min(kLanes, plan.rows - i * kLanes));
    }
  });
}

void run(const KernelArgs& args) {
  const auto& plan = *static_cast<const FourierPlan*>(args.prepared);
  if (args.in[0].dtype == DType::Float64)
    transform_rows<double, double>(args, plan);
  else if (takes_lanes(plan, DType::Float32))
    transform_rows<float, FloatVec>(args, plan);
  else
    transform_rows<float, float>(args, plan);
}

Reason unsupported(const StepFacts& facts) {
  for (const int64_t factor : factors_of(facts.node().attrs.integer("length")))
    if (factor > kLargestFactor)
      return str("the length must have no prime factor above ", kLargestFactor, ", but has ",
                 factor);
  return {};
}

REGISTER_CPU_KERNEL({.op = "FourierTransform",
                     .name = "fourier_transform_cpu",
                     .dtypes = {DType::Float32, DType::Float64},
                     .run = run,
                     .unsupported = unsupported,
                     .workspace_bytes = workspace_bytes,
                     .prepare = prepare});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
