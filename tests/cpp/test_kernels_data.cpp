// Kernels that move elements: gather, concat, pad, slices, triangles, ranges, running sums.
#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

constexpr DType kTypes[] = {DType::Float32, DType::Float64, DType::BFloat16, DType::Int64,
                            DType::Int8};

TEST(Gather, TakesRowsOfAnyAxis) {
  for (DType dtype : kTypes) {
    for (int64_t inner : {1, 5, 70}) {
      Tensor data = Tensor::random(dtype, {3, 11, inner}, 1, -50, 50);
      for (DType index_type : {DType::Int64, DType::Int32}) {
        Tensor indices = Tensor::of(index_type, {2, 3}, {0, 10, -1, -11, 4, 4});
        Tensor y(dtype, {3, 2, 3, inner});
        std::vector<double> expected;
        for (int64_t o = 0; o < 3; ++o)
          for (int64_t m = 0; m < 6; ++m)
            for (int64_t i = 0; i < inner; ++i) {
              const int64_t index = (static_cast<int64_t>(indices.get(m)) + 11) % 11;
              expected.push_back(data.get((o * 11 + index) * inner + i));
            }
        run_op("Gather", {{"axis", 1}}, {&data, &indices}, {&y},
               [&] { expect_close(y, expected, 0, 0, "Gather"); });
      }
    }
  }
}

struct GatherGradCase {
  int64_t outer, size, inner, count;
};

// ddata (+ sum) by its definition, for random indices among which the last row never occurs.
void check_gather_grad(const GatherGradCase& c, DType dtype, int64_t padding, bool has_sum) {
  const auto [outer, size, inner, count] = c;
  const bool is_float = epsilon_of(dtype) > 0;
  Tensor dy = Tensor::random(dtype, {outer, count, inner}, 2);
  const double last = static_cast<double>(size);
  Tensor indices = Tensor::random(DType::Int64, {count}, 3, 0.1 - last, last - 1.1);
  Tensor sum = Tensor::random(dtype, {outer, size, inner}, 4), ddata(dtype, {outer, size, inner});
  std::vector<double> expected(static_cast<size_t>(outer * size * inner), 0.0);
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t m = 0; m < count; ++m) {
      const int64_t index = (static_cast<int64_t>(indices.get(m)) + size) % size;
      for (int64_t i = 0; index != padding && i < inner; ++i)
        expected[static_cast<size_t>((o * size + index) * inner + i)] +=
            dy.get((o * count + m) * inner + i);
    }
  if (has_sum) {
    for (int64_t i = 0; i < sum.count(); ++i) {
      ddata.set(i, expected[static_cast<size_t>(i)]);
      expected[static_cast<size_t>(i)] = ddata.get(i) + sum.get(i);
    }
  }
  const double scale = 4 * std::max(1.0, static_cast<double>(count) / last);
  std::vector<Tensor*> in{&dy, &indices};
  if (has_sum) in.push_back(&sum);
  run_op("GatherGrad", {{"axis", 1}, {"size", size}, {"padding_idx", padding}}, in, {&ddata}, [&] {
    if (is_float) expect_close(ddata, expected, 4, scale, "GatherGrad");
    for (int64_t i = 0; !is_float && i < ddata.count(); ++i) {  // integers wrap around
      Tensor wrapped(dtype, {1});
      wrapped.set(0, expected[static_cast<size_t>(i)]);
      ASSERT_EQ(ddata.get(i), wrapped.get(0)) << i;
    }
  });
}

TEST(Gather, AddsGradientsInOrder) {
  for (const GatherGradCase& c :
       {GatherGradCase{2, 7, 33, 50}, GatherGradCase{1, 40, 8, 3000}, GatherGradCase{2, 3, 1, 3000},
        GatherGradCase{1, 2, 300, 90}, GatherGradCase{1, 5000, 4, 70}, GatherGradCase{1, 5, 4, 0},
        GatherGradCase{3, 1, 2, 1}})
    for (DType dtype : {DType::Float32, DType::Float64, DType::BFloat16, DType::Float16,
                        DType::Int64, DType::Int16})
      for (int64_t padding : {-1, 4})
        for (bool has_sum : {false, true}) check_gather_grad(c, dtype, padding, has_sum);
}

// More rows than the emulation's kernels take at once.
TEST(Gather, AddsGradientsOfManyRows) {
  check_gather_grad({30, 2500, 1, 40}, DType::Float32, -1, true);
}

// The sum may be the result's own memory, of which rows without an index stay as they are.
TEST(Gather, AddsGradientsInPlace) {
  Tensor dy = Tensor::of(DType::Float32, {3, 2}, {1, 2, 3, 4, 5, 6});
  Tensor indices = Tensor::of(DType::Int32, {3}, {2, 0, 2});
  for (const KernelDef* def : kernels_of("GatherGrad")) {
    Tensor sum = Tensor::of(DType::Float32, {3, 2}, {10, 20, 30, 40, 50, 60});
    const Attrs attrs{{"axis", 0}, {"size", 3}, {"padding_idx", -1}};
    const std::vector<Tensor*> in{&dy, &indices, &sum}, out{&sum};
    run_kernel(*def, facts_of({node_of("GatherGrad", attrs, in, out)}, in, out), in, out);
    expect_close(sum, {13, 24, 30, 40, 56, 68}, 0, 0, std::string(def->name));
  }
}

TEST(Gather, TakesNothing) {
  Tensor data = Tensor::random(DType::Float32, {4, 2}, 1), y(DType::Float32, {0, 2});
  Tensor indices(DType::Int64, {0});
  run_op("Gather", {{"axis", 0}}, {&data, &indices}, {&y}, [] {});
}

TEST(Gather, NamesABadIndex) {
  Tensor data = Tensor::random(DType::Float32, {4, 2}, 1), y(DType::Float32, {2, 2});
  Tensor indices = Tensor::of(DType::Int64, {2}, {0, 4});
  const StepFacts facts = facts_of({node_of("Gather", {{"axis", 0}}, {&data, &indices}, {&y})},
                                   {&data, &indices}, {&y});
  for (const KernelDef* def : kernels_of("Gather")) {
    try {
      run_kernel(*def, facts, {&data, &indices}, {&y});
      FAIL() << def->name;
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "[Gather] indices must lie in [-4, 4), but found 4 at position 1");
    }
  }
}

// Indices of `index_sizes` into data of `sizes`; updates come in order, so the last of a place
// stays without reduction.
void check_elements(DType dtype, const Sizes& sizes, const Sizes& index_sizes, int64_t axis,
                    bool add) {
  Tensor data = Tensor::random(dtype, sizes, 4);
  const auto size = sizes[static_cast<size_t>(axis)];
  const double last = static_cast<double>(size) - 0.1;
  Tensor indices = Tensor::random(DType::Int64, index_sizes, 5, -last, last);
  Tensor updates = Tensor::random(dtype, index_sizes, 6);
  Tensor y(dtype, index_sizes), sum(dtype, sizes), place_of(dtype, {1});
  std::vector<double> expected, sums = data.values();
  for (int64_t i = 0; i < indices.count(); ++i) {
    int64_t place[3] = {i / (index_sizes[1] * index_sizes[2]), i / index_sizes[2] % index_sizes[1],
                        i % index_sizes[2]};
    place[axis] = (static_cast<int64_t>(indices.get(i)) + size) % size;
    const int64_t at = (place[0] * sizes[1] + place[1]) * sizes[2] + place[2];
    expected.push_back(data.get(at));
    double& result = sums[static_cast<size_t>(at)];
    place_of.set(0, add ? result + updates.get(i) : updates.get(i));
    // The CPU adds 16 bits in float32, CUDA rounds at every step.
    result = add && epsilon_of(dtype) > epsilon_of(DType::Float32) ? result + updates.get(i)
                                                                   : place_of.get(0);
  }
  const double ulps = add && epsilon_of(dtype) > epsilon_of(DType::Float32) ? 16 : 0;
  run_op("GatherElements", {{"axis", axis}}, {&data, &indices}, {&y},
         [&] { expect_close(y, expected, 0, 0, "GatherElements"); });
  run_op("ScatterElements", {{"axis", axis}, {"reduction", std::string(add ? "add" : "none")}},
         {&data, &indices, &updates}, {&sum},
         [&] { expect_close(sum, sums, ulps, 8, "ScatterElements"); });
}

TEST(GatherElements, TakesAndScatters) {
  for (DType dtype :
       {DType::Float32, DType::Float64, DType::BFloat16, DType::Float16, DType::Int64, DType::Int8})
    for (int64_t axis : {0, 1, 2})
      for (bool add : {true, false}) {
        check_elements(dtype, {4, 5, 6}, {3, 4, 5}, axis, add);
        check_elements(dtype, {5, 6, 7},
                       {axis == 0 ? 75 : 3, axis == 1 ? 40 : 4, axis == 2 ? 33 : 5}, axis, add);
        check_elements(dtype, {4, 5, 6}, {3, 0, 5}, axis, add);
        check_elements(dtype, {3, 4, 300}, {3, 4, 290}, axis, add);
      }
}

TEST(ScatterElements, Reduces) {
  for (DType dtype : {DType::Float32, DType::Float64, DType::BFloat16, DType::Float16, DType::Int64,
                      DType::Int32, DType::UInt8, DType::Bool})
    for (int64_t axis : {0, 1})
      for (const std::string reduction : {"add", "mul", "min", "max"}) {
        SCOPED_TRACE(str(name_of(dtype), " ", reduction, " along ", axis));
        const bool is_float = kAllFloats.contains(dtype);
        const double least = is_float ? -2 : 0, most = dtype == DType::Bool ? 1.9 : 3;
        const Sizes sizes{5, 6}, index_sizes{axis == 0 ? 9 : 4, axis == 0 ? 5 : 11};
        Tensor data = Tensor::random(dtype, sizes, 4, least, most), y(dtype, sizes);
        Tensor indices = Tensor::random(DType::Int64, index_sizes, 5, -4.9, 4.9);
        Tensor updates = Tensor::random(dtype, index_sizes, 6, least, most);
        if (is_float) updates.set(7, std::nan(""));
        std::vector<double> expected = data.values();
        for (int64_t i = 0; i < indices.count(); ++i) {
          int64_t place[2] = {i / index_sizes[1], i % index_sizes[1]};
          const int64_t size = sizes[static_cast<size_t>(axis)];
          place[axis] = (static_cast<int64_t>(indices.get(i)) + size) % size;
          double& value = expected[static_cast<size_t>(place[0] * sizes[1] + place[1])];
          const double update = updates.get(i);
          if (reduction == "add") value += update;
          if (reduction == "mul") value *= update;
          const bool takes =
              std::isnan(update) || (reduction == "min" ? update < value : update > value);
          if (reduction.starts_with("m") && reduction != "mul" && takes) value = update;
        }
        if (dtype == DType::Bool)
          for (double& value : expected) value = value != 0;
        if (dtype == DType::UInt8)
          for (double& value : expected) value = std::fmod(value, 256);
        const double ulps = !is_float || reduction == "min" || reduction == "max" ? 0 : 16;
        const Attrs attrs{{"axis", axis}, {"reduction", reduction}};
        run_kernel_named("scatter_elements_cpu", "ScatterElements", attrs,
                         {&data, &indices, &updates}, {&y},
                         [&] { expect_close(y, expected, ulps, 8, "y"); });
      }
}

// Of which every partial sum of 16 bits would stay at 256 or 2048.
TEST(GatherElements, AddsManyUpdatesOf16Bits) {
  for (DType dtype : {DType::BFloat16, DType::Float16})
    for (int64_t axis : {0, 1, 2}) {
      Sizes sizes{3, 5, 33};
      Tensor data = Tensor::random(dtype, sizes, 8, 0.5, 1), sum(dtype, sizes);
      std::vector<double> expected = data.values();
      sizes[static_cast<size_t>(axis)] = 3000;
      Tensor indices = Tensor::random(DType::Int32, sizes, 9, 0, 0.5);
      Tensor updates = Tensor::of(dtype, sizes, std::vector<double>(indices.values().size(), 1.0));
      for (int64_t i = 0; i < data.count(); ++i) {
        const int64_t at[] = {i / (5 * 33), i / 33 % 5, i % 33};
        if (at[axis] == 0) expected[static_cast<size_t>(i)] += 3000;
      }
      const std::vector<Tensor*> in{&data, &indices, &updates};
      const StepFacts facts =
          facts_of({node_of("ScatterElements", {{"axis", axis}}, in, {&sum})}, in, {&sum});
      for (const KernelDef* def : kernels_of("ScatterElements")) {
        if (def->device != Device::CPU) continue;
        run_kernel(*def, facts, in, {&sum}, two_threads);
        expect_close(sum, expected, 1, 0, std::string(def->name));
      }
    }
}

// The data may be the result's own memory, of which places without an index stay as they are.
TEST(GatherElements, ScattersInPlace) {
  for (const KernelDef* def : kernels_of("ScatterElements")) {
    if (!def->inplace) continue;
    EXPECT_EQ(def->inplace_operand, 0);
    for (DType dtype : {DType::Float32, DType::BFloat16}) {
      Tensor y = Tensor::of(dtype, {2, 3}, {10, 20, 30, 40, 50, 60});
      Tensor indices = Tensor::of(DType::Int64, {2, 2}, {2, 2, 0, 1});
      Tensor updates = Tensor::of(dtype, {2, 2}, {1, 2, 3, 4});
      const std::vector<Tensor*> in{&y, &indices, &updates}, out{&y};
      run_kernel(*def, facts_of({node_of("ScatterElements", {{"axis", 1}}, in, out)}, in, out), in,
                 out);
      expect_close(y, {10, 20, 33, 43, 54, 60}, 0, 0, std::string(def->name));
    }
  }
}

// An index per row, expanded to the row's elements, is no tensor of its own on the CPU.
TEST(GatherElements, ReadsAnExpandedIndex) {
  Tensor data = Tensor::random(DType::Float32, {5, 2, 3}, 7), y(DType::Float32, {4, 2, 3});
  Tensor indices(DType::Int64, {4, 2, 3}, {1, 0, 0});
  const double rows[] = {4, 0, 4, -2};
  std::vector<double> gathered, sums = data.values();
  for (int64_t i = 0; i < indices.count(); ++i) {
    indices.set(i, rows[i / 6]);
    const int64_t at = static_cast<int64_t>(rows[i / 6] + 5) % 5 * 6 + i % 6;
    gathered.push_back(data.get(at));
    sums[static_cast<size_t>(at)] = static_cast<float>(sums[static_cast<size_t>(at)] + data.get(i));
  }
  Tensor updates(DType::Float32, {4, 2, 3}), sum = data;
  for (int64_t i = 0; i < updates.count(); ++i) updates.set(i, data.get(i));
  const auto run = [&](const std::string& op, const std::vector<Tensor*>& in, Tensor& out) {
    const StepFacts facts = facts_of({node_of(op, {{"axis", 0}}, in, {&out})}, in, {&out});
    for (const KernelDef* def : kernels_of(op))
      if (def->device == Device::CPU) run_kernel(*def, facts, in, {&out});
  };
  run("GatherElements", {&data, &indices}, y);
  expect_close(y, gathered, 0, 0, "GatherElements");
  run("ScatterElements", {&data, &indices, &updates}, sum);
  expect_close(sum, sums, 0, 0, "ScatterElements");
  indices.set(6, 5);
  try {
    run("GatherElements", {&data, &indices}, y);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "[GatherElements] indices must lie in [-5, 5), but found 5 at position 6");
  }
}

// Rows of indices are checked together before they are followed.
TEST(GatherElements, RefusesIndicesFarAway) {
  Tensor data = Tensor::random(DType::Float32, {5, 40}, 7), y(DType::Float32, {5, 40});
  const auto refuses = [&](const std::string& op, int64_t axis, const std::vector<Tensor*>& in) {
    const StepFacts facts = facts_of({node_of(op, {{"axis", axis}}, in, {&y})}, in, {&y});
    for (const KernelDef* def : kernels_of(op)) {
      if (def->device != Device::CPU) continue;
      try {
        run_kernel(*def, facts, in, {&y});
        ADD_FAILURE() << op << " takes " << in[1]->get(123);
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("indices must lie in"), std::string::npos)
            << error.what();
      }
    }
  };
  for (const int64_t axis : {0, 1})
    for (const double wrong : {-0x1p63, -0x1p40, -41.0, 40.0, 0x1p40, 0x1.fffffffffffffp62}) {
      SCOPED_TRACE(wrong);
      Tensor indices(DType::Int64, {5, 40});
      for (int64_t i = 0; i < indices.count(); ++i) indices.set(i, i == 123 ? wrong : -1.0);
      refuses("GatherElements", axis, {&data, &indices});
      refuses("ScatterElements", axis, {&data, &indices, &data});
    }
}

TEST(Concat, JoinsAnyLayouts) {
  for (int64_t axis : {0, 1, 2}) {
    Sizes a_sizes{2, 3, 4}, b_sizes{2, 3, 4}, y_sizes{2, 3, 4};
    const auto at = static_cast<size_t>(axis);
    b_sizes[at] = 5;
    y_sizes[at] += 5;
    Tensor a = Tensor::random(DType::Float32, a_sizes, 7);
    Tensor b =
        Tensor::random(DType::Float32, b_sizes, 8, -2, 2, {1, b_sizes[0], b_sizes[0] * b_sizes[1]});
    Tensor y(DType::Float32, y_sizes);
    std::vector<double> expected(static_cast<size_t>(y.count()));
    for (int64_t i = 0; i < y.count(); ++i) {
      int64_t c[3] = {i / (y_sizes[1] * y_sizes[2]), i / y_sizes[2] % y_sizes[1], i % y_sizes[2]};
      const bool first = c[axis] < a_sizes[at];
      if (!first) c[axis] -= a_sizes[at];
      const Tensor& from = first ? a : b;
      expected[static_cast<size_t>(i)] =
          from.get((c[0] * from.sizes()[1] + c[1]) * from.sizes()[2] + c[2]);
    }
    run_op("Concat", {{"axis", axis}}, {&a, &b}, {&y},
           [&] { expect_close(y, expected, 0, 0, "Concat"); });
  }
}

// Eleven operands in three layouts; neighbours of one layout share launches.
TEST(Concat, JoinsManyOperandsThatLieAlike) {
  constexpr int64_t kRows = 3, kColumns = 8, kOperands = 11;
  for (int64_t axis : {0, 1}) {
    std::vector<Tensor> operands;
    for (int64_t i = 0; i < kOperands; ++i)
      operands.push_back(Tensor::random(DType::BFloat16, {kRows, kColumns}, 7 + i, -2, 2,
                                        i == 9 ? Sizes{1, kRows} : Sizes{kColumns, 1}));
    std::vector<Tensor*> in;
    for (Tensor& operand : operands) in.push_back(&operand);
    const bool below = axis == 0;
    Tensor y(DType::BFloat16,
             below ? Sizes{kRows * kOperands, kColumns} : Sizes{kRows, kColumns * kOperands});
    std::vector<double> expected;
    for (int64_t row = 0; row < y.sizes()[0]; ++row)
      for (int64_t column = 0; column < y.sizes()[1]; ++column) {
        const int64_t operand = below ? row / kRows : column / kColumns;
        expected.push_back(
            operands[static_cast<size_t>(operand)].get(row % kRows * kColumns + column % kColumns));
      }
    run_op("Concat", {{"axis", axis}}, in, {&y},
           [&] { expect_close(y, expected, 0, 0, "Concat"); });
  }
}

TEST(Pad, SurroundsWithAValue) {
  for (DType dtype : kTypes) {
    Tensor x = Tensor::random(dtype, {2, 3}, 9, -50, 50, {1, 2}), y(dtype, {2 + 1 + 2, 3 - 1 + 4});
    std::vector<double> expected;
    for (int64_t i = -1; i < 4; ++i)
      for (int64_t j = 1; j < 7; ++j)
        expected.push_back(i >= 0 && i < 2 && j < 3 ? x.get(i * 3 + j) : 7);
    run_op("Pad", {{"pads", Dims{1, -1, 2, 4}}, {"value", 7.0}}, {&x}, {&y},
           [&] { expect_close(y, expected, 0, 0, "Pad"); });
  }
}

TEST(Pad, FillsBetweenLongRows) {
  // Rows of 80 elements in 2 x 3 places, with gaps before, between and behind them.
  for (const Dims& pads : {Dims{1, 0, 2, 0, 0, 1, 0, 0}, Dims{0, 1, 0, 3, 0, 0, 0, 2},
                           Dims{0, -1, 1, 0, 1, 0, 0, 0}}) {
    const auto pad = [&](size_t d) { return pads[d].value(); };
    Tensor x = Tensor::random(DType::Float32, {2, 3, 4, 20}, 9);
    Sizes sizes;
    for (size_t d = 0; d < 4; ++d) sizes.push_back(x.sizes()[d] + pad(d) + pad(4 + d));
    Tensor y(DType::Float32, sizes);
    std::vector<double> expected;
    for (int64_t i = 0; i < y.count(); ++i) {
      int64_t rest = i, from = 0, stride = 1;
      bool inside = true;
      for (size_t d = 4; d-- > 0; rest /= sizes[d], stride *= x.sizes()[d]) {
        const int64_t at = rest % sizes[d] - pad(d);
        inside = inside && at >= 0 && at < x.sizes()[d];
        from += at * stride;
      }
      expected.push_back(inside ? x.get(from) : -3);
    }
    run_op("Pad", {{"pads", pads}, {"value", -3.0}}, {&x}, {&y},
           [&] { expect_close(y, expected, 0, 0, "Pad"); });
  }
}

TEST(SliceGrad, PutsTheSliceBack) {
  Tensor dy = Tensor::random(DType::Float32, {2, 3, 2}, 10), dx(DType::Float32, {2, 9, 2});
  std::vector<double> expected(36, 0.0);
  for (int64_t o = 0; o < 2; ++o)
    for (int64_t k = 0; k < 3; ++k)
      for (int64_t i = 0; i < 2; ++i)
        expected[static_cast<size_t>((o * 9 + 1 + 3 * k) * 2 + i)] = dy.get((o * 3 + k) * 2 + i);
  run_op("SliceGrad",
         {{"axis", 1}, {"start", 1}, {"end", 9}, {"step", 3}, {"shape", Dims{2, 9, 2}}}, {&dy},
         {&dx}, [&] { expect_close(dx, expected, 0, 0, "SliceGrad"); });
}

void check_trilu(DType dtype, const Sizes& sizes, bool upper, int64_t k) {
  Tensor x = Tensor::random(dtype, sizes, 11, 1, 9), y(dtype, sizes);
  std::vector<double> expected;
  for (int64_t i = 0; i < x.count(); ++i) {
    const int64_t row = i / sizes[2] % sizes[1], column = i % sizes[2];
    expected.push_back((upper ? column - row >= k : column - row <= k) ? x.get(i) : 0);
  }
  run_op("Trilu", {{"upper", upper ? 1 : 0}, {"k", k}}, {&x}, {&y},
         [&] { expect_close(y, expected, 0, 0, "Trilu"); });
}

TEST(Trilu, KeepsATriangle) {
  for (bool upper : {false, true}) {
    for (DType dtype : kTypes)
      for (int64_t k = -6; k <= 6; ++k) check_trilu(dtype, {2, 4, 5}, upper, k);
    // More elements than the emulation's kernels count in 32 bits.
    check_trilu(DType::Float32, {2, 150, 230}, upper, -7);
  }
}

TEST(CumSum, AddsUp) {
  for (DType dtype : kTypes) {
    for (bool reverse : {false, true}) {
      Tensor x = Tensor::random(dtype, {2, 10, 3}, 12, -5, 5), y(dtype, {2, 10, 3});
      std::vector<double> expected(60);
      for (int64_t line = 0; line < 6; ++line) {
        double sum = 0;
        for (int64_t j = 0; j < 10; ++j) {
          const int64_t at = (line / 3 * 10 + (reverse ? 9 - j : j)) * 3 + line % 3;
          expected[static_cast<size_t>(at)] = sum += x.get(at);
        }
      }
      run_op("CumSum", {{"axis", 1}, {"reverse", reverse ? 1 : 0}}, {&x}, {&y},
             [&] { expect_close(y, expected, 1, 0.1, "CumSum"); });
    }
  }
}

TEST(CumSum, AddsUpLongLines) {
  for (int64_t count : {1, 31, 257, 3000}) {
    for (bool reverse : {false, true}) {
      for (bool exclusive : {false, true}) {
        Tensor x = Tensor::random(DType::Float64, {3, count}, 13), y(DType::Float64, {3, count});
        std::vector<double> expected(static_cast<size_t>(3 * count));
        for (int64_t line = 0; line < 3; ++line) {
          double sum = 0;
          for (int64_t j = 0; j < count; ++j) {
            const int64_t at = line * count + (reverse ? count - 1 - j : j);
            const double before = sum;
            sum += x.get(at);
            expected[static_cast<size_t>(at)] = exclusive ? before : sum;
          }
        }
        const Attrs attrs{{"axis", 1}, {"reverse", reverse}, {"exclusive", exclusive}};
        run_op("CumSum", attrs, {&x}, {&y}, [&] { expect_close(y, expected, 400, 10, "CumSum"); });
      }
    }
  }
}

TEST(Constants, FillAndCount) {
  for (DType dtype : kTypes) {
    Tensor full(dtype, {3, 5}), counted(dtype, {6});
    run_op("ConstantOfShape", {{"value", 3.0}, {"shape", Dims{3, 5}}, {"dtype", dtype}}, {},
           {&full},
           [&] { expect_close(full, std::vector<double>(15, 3.0), 0, 0, "ConstantOfShape"); });
    for (int64_t count : {1, 7, 100, 5000}) {
      Tensor like(dtype, {count}), zeros(dtype, {count});
      run_op("GradientZeros", {}, {&like}, {&zeros}, [&] {
        expect_close(zeros, std::vector<double>(static_cast<size_t>(count), 0.0), 0, 0, "zeros");
      });
    }
    run_op("Range", {{"start", 2}, {"limit", 20}, {"delta", 3}, {"dtype", dtype}}, {}, {&counted},
           [&] {
             expect_close(counted, {2, 5, 8, 11, 14, 17}, 0, 0, "Range");
           });
  }
  Tensor halves(DType::Float32, {3});
  run_op("Range", {{"start", 0.5}, {"limit", 2.0}, {"delta", 0.5}, {"dtype", DType::Float32}}, {},
         {&halves}, [&] {
           expect_close(halves, {0.5, 1, 1.5}, 0, 0, "Range");
         });
}

// Pairs of elements are turned by angles that are broadcast; those behind them stay.
void check_rotary(DType dtype, bool interleaved, int64_t half, const Sizes& strides) {
  constexpr int64_t kWidth = 40;
  Tensor x = Tensor::random(dtype, {2, 3, 4, kWidth}, 1, -2, 2, strides);
  Tensor cosines = Tensor::random(dtype, {2, 1, 4, half}, 2), sines(dtype, {2, 1, 4, half});
  for (int64_t i = 0; i < sines.count(); ++i) sines.set(i, std::sin(static_cast<double>(i)));
  std::vector<double> expected = x.values();
  for (int64_t row = 0; row < 24; ++row) {
    const int64_t table = (row / 12 * 4 + row % 4) * half;
    for (int64_t i = 0; i < half; ++i) {
      const int64_t at = row * kWidth + (interleaved ? 2 * i : i);
      const int64_t other = at + (interleaved ? 1 : half);
      const double a = x.get(at), b = x.get(other);
      const double c = cosines.get(table + i), s = sines.get(table + i);
      expected[static_cast<size_t>(at)] = a * c - b * s;
      expected[static_cast<size_t>(other)] = a * s + b * c;
    }
  }
  Tensor y(dtype, x.sizes(), strides_like(x.sizes(), x.layout()));
  run_op("RotaryEmbedding", {{"interleaved", interleaved ? 1 : 0}}, {&x, &cosines, &sines}, {&y},
         [&] { expect_close(y, expected, 4, 4, "RotaryEmbedding"); });
}

TEST(RotaryEmbedding, TurnsPairs) {
  for (DType dtype : {DType::Float32, DType::Float64, DType::BFloat16, DType::Float16})
    for (bool interleaved : {false, true})
      for (int64_t half : {20, 12, 0}) {
        check_rotary(dtype, interleaved, half, {480, 160, 40, 1});
        check_rotary(dtype, interleaved, half, {1000, 40, 250, 1});  // heads beside each other
      }
}

// Indices of padding: single ones and long runs.
TEST(Gather, CopiesRunsOfTheLastAxis) {
  std::vector<double> places{3, 2, 1};
  for (int i = 0; i < 300; ++i) places.push_back(i);
  places.insert(places.end(), {298, 299, 7, 7});
  const auto count = static_cast<int64_t>(places.size());
  for (DType dtype : {DType::Float32, DType::Int8, DType::Float64}) {
    Tensor data = Tensor::random(dtype, {5, 300}, 1, 0, 100), y(dtype, {5, count});
    Tensor indices = Tensor::of(DType::Int64, {count}, places);
    std::vector<double> expected;
    for (int64_t row = 0; row < 5; ++row)
      for (double place : places)
        expected.push_back(data.get(row * 300 + static_cast<int64_t>(place)));
    run_op("Gather", {{"axis", 1}}, {&data, &indices}, {&y},
           [&] { expect_close(y, expected, 0, 0, "runs"); });
  }
}

}  // namespace
}  // namespace ortmodule::testing
