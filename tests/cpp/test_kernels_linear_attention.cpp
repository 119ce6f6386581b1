// LinearAttention against its definition in double, on both devices.
#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

struct Case {
  int64_t steps = 5, q_heads = 2, heads = 2, keys = 4, values = 3;
  bool past = true, corrected = true, one_rate = false;
  int64_t decays = 1;  // for each head; 0: none
};

class LinearLayer {
 public:
  explicit LinearLayer(const Case& c)
      : c_(c),
        q_(random({2, c.steps, c.q_heads * c.keys}, 1)),
        k_(random({2, c.steps, c.heads * c.keys}, 2)),
        v_(random({2, c.steps, c.heads * c.values}, 3)),
        past_(random({2, c.heads, c.keys, c.values}, 4)),
        decay_(random({2, c.steps, c.heads * std::max<int64_t>(c.decays, 1)}, 5)),
        beta_(random({2, c.steps, c.one_rate ? 1 : c.heads}, 6)),
        y_(DType::Float32, {2, c.steps, c.q_heads * c.values}),
        state_(DType::Float32, {2, c.heads, c.keys, c.values}) {}

  void check() {
    const Attrs attrs{{"q_num_heads", c_.q_heads}, {"kv_num_heads", c_.heads}, {"scale", 0.5}};
    run_op("LinearAttention", attrs,
           {&q_, &k_, &v_, c_.past ? &past_ : nullptr, c_.decays > 0 ? &decay_ : nullptr,
            c_.corrected ? &beta_ : nullptr},
           {&y_, &state_}, [&] { compare(); });
  }

 private:
  static Tensor random(Sizes sizes, int seed) {
    return Tensor::random(DType::Float32, std::move(sizes), seed, -0.7, 0.7);
  }

  void compare() {
    std::vector<double> y(static_cast<size_t>(y_.count()));
    std::vector<double> state(static_cast<size_t>(state_.count()));
    for (int64_t batch = 0; batch < 2; ++batch)
      for (int64_t head = 0; head < c_.heads; ++head)
        for (int64_t column = 0; column < c_.values; ++column) run(batch, head, column, y, state);
    expect_close(y_, y, 64, 1, "y");
    expect_close(state_, state, 64, 1, "state");
  }

  void run(int64_t batch, int64_t head, int64_t column, std::vector<double>& y,
           std::vector<double>& state) {
    std::vector<double> s(static_cast<size_t>(c_.keys));
    const auto place = [&](int64_t i) {
      return ((batch * c_.heads + head) * c_.keys + i) * c_.values + column;
    };
    for (int64_t i = 0; i < c_.keys && c_.past; ++i)
      s[static_cast<size_t>(i)] = past_.get(place(i));
    for (int64_t t = 0; t < c_.steps; ++t) {
      const int64_t row = batch * c_.steps + t, of_head = row * c_.heads + head;
      double change = v_.get(of_head * c_.values + column);
      for (int64_t i = 0; i < c_.keys; ++i) {
        double& element = s[static_cast<size_t>(i)];
        if (c_.decays > 0)
          element *= std::exp(decay_.get(of_head * c_.decays + (c_.decays > 1 ? i : 0)));
        if (c_.corrected) change -= element * k_.get(of_head * c_.keys + i);
      }
      if (c_.corrected) change *= beta_.get(c_.one_rate ? row : of_head);
      for (int64_t i = 0; i < c_.keys; ++i)
        s[static_cast<size_t>(i)] += change * k_.get(of_head * c_.keys + i);
      const int64_t group = c_.q_heads / c_.heads;
      for (int64_t g = 0; g < group; ++g) {
        const int64_t query = row * c_.q_heads + head * group + g;
        double sum = 0;
        for (int64_t i = 0; i < c_.keys; ++i)
          sum += s[static_cast<size_t>(i)] * q_.get(query * c_.keys + i);
        y[static_cast<size_t>(query * c_.values + column)] = 0.5 * sum;
      }
    }
    for (int64_t i = 0; i < c_.keys; ++i)
      state[static_cast<size_t>(place(i))] = s[static_cast<size_t>(i)];
  }

  Case c_;
  Tensor q_, k_, v_, past_, decay_, beta_, y_, state_;
};

TEST(LinearAttention, StepsAreThoseOfTheirDefinition) {
  for (const int64_t values : {1, 3, 16, 64, 83})
    for (const int64_t decays : {0, 1, 4})
      for (const bool corrected : {false, true}) {
        SCOPED_TRACE(str(values, " values, ", decays, " decays, corrected ", corrected));
        Case c;
        c.values = values;
        c.decays = decays;
        c.corrected = corrected;
        LinearLayer(c).check();
      }
}

TEST(LinearAttention, HeadsAreSharedAndStatesBeginAtZero) {
  Case c;
  c.q_heads = 6;
  c.past = false;
  c.one_rate = true;
  LinearLayer(c).check();
  c.steps = 1;
  LinearLayer(c).check();
  c.steps = 0;
  c.past = true;
  LinearLayer(c).check();
}

}  // namespace
}  // namespace ortmodule::testing
