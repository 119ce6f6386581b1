// The C++ interface (ortmodule/inference.h): values, sessions, errors, lifetimes, threads.
#include <gtest/gtest.h>
#include <ortmodule/inference.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <thread>
#include <vector>

#include "small_onnx_models.h"

namespace ortmodule::inference {
namespace {

using namespace ortmodule::testing;  // NOLINT: the models
using Floats = std::vector<float>;
using Sizes = std::vector<int64_t>;

Session open(const std::string& model, const SessionOptions& options = {}) {
  return Session::from_bytes(model.data(), model.size(), options);
}

/// The error that `body` throws.
template <class Body>
std::pair<ErrorCode, std::string> error_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  ADD_FAILURE() << "nothing was thrown";
  return {ErrorCode::Fail, ""};
}

void expect_error(const std::pair<ErrorCode, std::string>& error, ErrorCode code,
                  const std::string& text) {
  EXPECT_EQ(error.first, code) << error.second;
  EXPECT_NE(error.second.find(text), std::string::npos) << error.second;
}

TEST(CppInterface, RunsAndSelectsOutputsByName) {
  const Session session = open(sum_model());
  const Value x = Value::tensor<float>({2, 2}, {1, 2, -30, 40});
  const std::vector<Value> all = session.run({"x"}, {x});
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].to_vector<float>(), (Floats{11, -18, -20, 20}));
  EXPECT_EQ(all[1].to_vector<float>(), (Floats{11, 0, 0, 20}));
  const std::vector<Value> chosen = session.run({"x"}, {x}, {"positive", "sum", "positive"});
  ASSERT_EQ(chosen.size(), 3u);
  EXPECT_EQ(chosen[0].to_vector<float>(), (Floats{11, 0, 0, 20}));
  EXPECT_EQ(chosen[1].to_vector<float>(), (Floats{11, -18, -20, 20}));
  EXPECT_EQ(chosen[2].sizes(), (Sizes{2, 2}));
}

TEST(CppInterface, StringsBesideWhatIsAskedFor) {
  const Session session = open(labelled_model());
  const Value x = Value::tensor<float>({1, 2}, {1, 2});
  EXPECT_EQ(session.run({"x"}, {x}, {"sum"}).at(0).to_vector<float>(), (Floats{2, 4}));
  expect_error(error_of([&] { session.run({"x"}, {x}); }), ErrorCode::NotImplemented, "strings");
}

TEST(CppInterface, InitializersOfFourBitsHaveAByteEach) {
  const Value x = Value::tensor(ElementType::Float32, {1, 3});
  EXPECT_EQ(open(narrow_model()).run({"x"}, {x})[0].to_vector<float>(), (Floats{1, 2, 3}));
  const std::array<int8_t, 3> given = {-8, 5, 7};
  SessionOptions options;
  options.add_initializer("w", Value::copied(ElementType::Int4, {3}, given.data(), given.size()));
  const std::vector<Value> y = open(narrow_model(), options).run({"x"}, {x});
  EXPECT_EQ(y[0].to_vector<float>(), (Floats{-8, 5, 7}));
}

TEST(CppInterface, DescribesInputsOutputsAndTheFile) {
  const Session session = open(sum_model());
  ASSERT_EQ(session.inputs().size(), 1u);
  const TensorInfo& x = session.inputs()[0];
  EXPECT_EQ(x.name, "x");
  EXPECT_EQ(x.type, ElementType::Float32);
  EXPECT_TRUE(x.has_rank);
  EXPECT_EQ(x.sizes, (Sizes{-1, 2}));
  EXPECT_EQ(x.size_names, (std::vector<std::string>{"n", ""}));
  EXPECT_EQ(session.outputs()[1].name, "positive");
  EXPECT_EQ(session.metadata().producer_name, "a test");
  EXPECT_EQ(session.metadata().graph_name, "sums");
  EXPECT_EQ(session.metadata().custom.at("color"), "red");
  const Session sequences = open(sequence_model());
  EXPECT_EQ(sequences.inputs()[0].kind, TensorInfo::Kind::Sequence);
  EXPECT_EQ(sequences.inputs()[0].type, ElementType::Float32);
  EXPECT_TRUE(open(optional_model()).inputs()[0].optional);
}

TEST(CppInterface, KnowsTheMemoryOfARunBeforeIt) {
  const Session session = open(sum_model(), SessionOptions().set_threads(1));
  for (int64_t n : {1, 100, 7}) {
    const MemoryReport report = session.memory({{"x", Sizes{n, 2}}});
    const Value x = Value::tensor(ElementType::Float32, {n, 2});
    EXPECT_EQ(session.memory({{"x", x}}).peak_bytes, report.peak_bytes);
    session.run({"x"}, {x});
    EXPECT_EQ(session.last_peak_bytes(), report.peak_bytes);
    EXPECT_EQ(report.outputs_bytes, 2 * n * 2 * 4);
    EXPECT_EQ(report.weights_bytes, 8);
    EXPECT_EQ(report.total_bytes, report.weights_bytes + report.peak_bytes);
    EXPECT_TRUE(report.exact);
  }
  const Value x = Value::tensor(ElementType::Float32, {3, 2});
  EXPECT_NE(session.plan_text({{"x", x}}).find("Add"), std::string::npos);
}

TEST(CppInterface, FixedSizesAndBadOptions) {
  const Session session = open(sum_model(), SessionOptions().set_fixed_size("n", 3));
  EXPECT_EQ(session.run({"x"}, {Value::tensor(ElementType::Float32, {3, 2})}).size(), 2u);
  EXPECT_THROW(session.run({"x"}, {Value::tensor(ElementType::Float32, {4, 2})}), Error);
  expect_error(error_of([] { SessionOptions().set_threads(-1); }), ErrorCode::InvalidArgument,
               "threads");
  expect_error(error_of([] { SessionOptions().set_fixed_size("n", -1); }),
               ErrorCode::InvalidArgument, "'n'");
  SessionOptions one = SessionOptions().set_fixed_size("n", 3), two = one;
  two.set_fixed_size("n", 4);
  EXPECT_NO_THROW(open(sum_model(), one).run({"x"}, {Value::tensor(ElementType::Float32, {3, 2})}));
}

TEST(CppInterface, WhatCannotBeLoadedSaysWhy) {
  expect_error(error_of([] { Session("/nowhere/model.onnx"); }), ErrorCode::NoSuchFile,
               "'/nowhere/model.onnx'");
  expect_error(error_of([] { open("this is no model"); }), ErrorCode::InvalidModel, "[onnx]");
  expect_error(error_of([] { Session::from_bytes(nullptr, 0); }), ErrorCode::InvalidModel, "");
  expect_error(error_of([] { Session::from_bytes(nullptr, 10); }), ErrorCode::InvalidArgument,
               "null");
  Message graph;
  graph.message(1, node_message("Magic", {"x"}, {"y"}));
  graph.message(11, value_message("x", float_type({2})));
  graph.message(12, value_message("y", float_type({2})));
  expect_error(error_of([&] { open(model_message(graph).bytes()); }), ErrorCode::InvalidModel,
               "Magic 'y': ONNX has no such operator");
}

TEST(CppInterface, OutputsHaveWhatTheFileLeavesOut) {
  Message graph;
  graph.message(1, node_message("Neg", {"x"}, {"y"}));
  graph.message(11, value_message("x", float_type({2, 3})));
  graph.message(12, Message().text(1, "y"));
  const Session session = open(model_message(graph).bytes());
  ASSERT_EQ(session.outputs().size(), 1u);
  EXPECT_EQ(session.outputs()[0].type, ElementType::Float32);
  EXPECT_TRUE(session.outputs()[0].has_rank);
  EXPECT_EQ(session.outputs()[0].sizes, (std::vector<int64_t>{2, 3}));
}

TEST(CppInterface, WrongNamesTypesAndSizesAreErrorsBeforeARun) {
  const Session session = open(sum_model());
  const Value x = Value::tensor(ElementType::Float32, {3, 2});
  const auto fails = [&](const std::vector<std::string>& names, const std::vector<Value>& values,
                         const std::string& text, const std::vector<std::string>& outputs = {}) {
    expect_error(error_of([&] { session.run(names, values, outputs); }), ErrorCode::InvalidArgument,
                 text);
  };
  fails({}, {}, "'x'");
  fails({"z"}, {x}, "found 'z'");
  fails({"x", "x"}, {x, x}, "two for 'x'");
  fails({"x", "y"}, {x}, "2 names and 1 values");
  fails({"x"}, {x}, "found 'other'", {"other"});
  fails({"x"}, {Value::tensor(ElementType::Float64, {3, 2})}, "float");
  fails({"x"}, {Value::tensor(ElementType::Float32, {3, 3})}, "size 2");
  fails({"x"}, {Value::tensor(ElementType::Float32, {6})}, "rank 2");
  fails({"x"}, {Value()}, "'x'");
  fails({"x"}, {Value::sequence({x})}, "'x'");
  expect_error(error_of([&] {
                 session.memory({{"x", Sizes{-1, 2}}});
               }),
               ErrorCode::InvalidArgument, "negative");
  expect_error(error_of([&] { session.memory(std::map<std::string, Value>()); }),
               ErrorCode::InvalidArgument, "'x'");
  const Value numbers = Value::tensor(ElementType::UInt16, {2});
  EXPECT_EQ(open(identity_model(4)).run({"x"}, {numbers}).at(0).type(), ElementType::UInt16);
}

TEST(CppValue, ChecksSizesTypesAndMemory) {
  std::array<float, 6> data{};
  const auto borrow = [&](Sizes sizes, size_t bytes, ElementType type = ElementType::Float32) {
    return error_of([&] { Value::borrowed(type, sizes, data.data(), bytes); });
  };
  expect_error(borrow({7}, sizeof data), ErrorCode::InvalidArgument, "28 bytes, but found 24");
  expect_error(borrow({2, -3}, sizeof data), ErrorCode::InvalidArgument, "negative");
  constexpr int64_t kHuge = int64_t{1} << 40;
  expect_error(borrow({kHuge, kHuge}, sizeof data), ErrorCode::InvalidArgument, "2^63");
  expect_error(borrow({1}, sizeof data, ElementType::String), ErrorCode::NotImplemented, "string");
  EXPECT_EQ(byte_size(ElementType::Int4), 1);  // elements of less than a byte have one each
  expect_error(
      error_of([] { Value::borrowed(ElementType::Float32, {1}, static_cast<void*>(nullptr), 4); }),
      ErrorCode::InvalidArgument, "null");
  expect_error(error_of([&] {
                 Value::borrowed(ElementType::Float32, {1},
                                 reinterpret_cast<char*>(data.data()) + 1, 8);
               }),
               ErrorCode::InvalidArgument, "multiple of 4");
  expect_error(error_of([] {
                 Value::tensor<float>({2, 2}, {1, 2, 3});
               }),
               ErrorCode::InvalidArgument, "16 bytes, but found 12");
  const Value floats = Value::borrowed({2, 3}, data.data(), data.size());
  expect_error(error_of([&] { floats.data<int32_t>(); }), ErrorCode::InvalidArgument, "int32");
  EXPECT_EQ(floats.mutable_data<float>(), data.data());
  const Value constant = Value::borrowed({6}, static_cast<const float*>(data.data()), 6);
  EXPECT_EQ(constant.data<float>(), data.data());
  expect_error(error_of([&] { constant.mutable_data(); }), ErrorCode::InvalidArgument, "reading");
  expect_error(error_of([&] { Value().sizes(); }), ErrorCode::InvalidArgument, "no value");
  expect_error(error_of([&] { floats.elements(); }), ErrorCode::InvalidArgument, "a tensor");
  expect_error(error_of([&] {
                 Value::sequence({floats, Value()});
               }),
               ErrorCode::InvalidArgument, "tensors");
  const Value empty = Value::tensor<float>({0, 4}, {});
  EXPECT_EQ(empty.byte_count(), 0u);
  EXPECT_EQ(empty.to_vector<float>(), Floats());
  EXPECT_EQ(Value::tensor<int64_t>({}, {5}).element_count(), 1);
}

TEST(CppValue, CopiesShareMemoryAndOwnersKeepIt) {
  Value first = Value::tensor(ElementType::Int32, {3});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first.data()) % 64, 0u);
  const Value second = first;
  first.mutable_data<int32_t>()[1] = 7;
  first = Value();
  EXPECT_EQ(second.to_vector<int32_t>(), (std::vector<int32_t>{0, 7, 0}));
  auto owner = std::make_shared<Floats>(Floats{1, 2});
  const std::weak_ptr<Floats> watched = owner;
  float* data = owner->data();
  std::optional<Value> value =
      Value::borrowed(ElementType::Float32, {2}, data, 8, std::move(owner));
  EXPECT_FALSE(watched.expired());
  EXPECT_EQ(value->to_vector<float>(), (Floats{1, 2}));
  value.reset();
  EXPECT_TRUE(watched.expired());
}

TEST(CppValue, HalvesRoundAndComeBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Float16 half = Float16::from_bits(static_cast<uint16_t>(bits));
    const auto wide = static_cast<float>(half);
    if (std::isnan(wide)) continue;
    ASSERT_EQ(Float16(wide).bits, half.bits);
  }
  EXPECT_EQ(static_cast<float>(Float16(65504)), 65504);
  EXPECT_EQ(static_cast<float>(Float16(0x1p-24f)), 0x1p-24f);
  EXPECT_TRUE(std::isinf(static_cast<float>(Float16(70000))));
  EXPECT_TRUE(std::isnan(static_cast<float>(Float16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_EQ(static_cast<float>(BFloat16(1.00390625f)), 1.0f) << "ties to even";
  EXPECT_EQ(static_cast<float>(BFloat16(-3.0f)), -3.0f);
}

TEST(CppInterface, SequencesAndOptionals) {
  const Session session = open(sequence_model());
  const Value a = Value::tensor<float>({1, 2}, {1, 2}),
              b = Value::tensor<float>({2, 2}, {3, 4, 5, 6});
  const std::vector<Value> out = session.run({"parts", "last"}, {Value::sequence({a, b}), a});
  EXPECT_EQ(out[0].to_vector<float>(), (Floats{1, 2, 3, 4, 5, 6}));
  ASSERT_TRUE(out[1].is_sequence());
  ASSERT_EQ(out[1].elements().size(), 3u);
  EXPECT_EQ(out[1].elements()[1].to_vector<float>(), (Floats{3, 4, 5, 6}));
  EXPECT_EQ(out[1].elements()[2].to_vector<float>(), (Floats{1, 2}));
  expect_error(error_of([&] {
                 session.run({"parts", "last"}, {a, a});
               }),
               ErrorCode::InvalidArgument, "'parts' must be a list");

  const Session optional = open(optional_model());
  EXPECT_TRUE(*optional.run({"maybe"}, {Value::tensor<float>({2}, {1, 2})})[0].data<bool>());
  EXPECT_FALSE(*optional.run({"maybe"}, {Value()})[0].data<bool>());
  EXPECT_FALSE(*optional.run({}, {})[0].data<bool>());
}

TEST(CppInterface, ResultsAndBindingsOutliveTheirSession) {
  Value y;
  std::optional<IoBinding> binding;
  {
    const std::string model = sum_model();
    auto owner = std::make_shared<std::string>(model);
    const std::string& bytes = *owner;
    const Session session =
        Session::from_borrowed_bytes(bytes.data(), bytes.size(), {}, std::move(owner));
    y = session.run({"x"}, {Value::tensor<float>({1, 2}, {1, 2})})[0];
    binding.emplace(session);
    binding->bind_input("x", Value::tensor<float>({1, 2}, {5, 6}));
    binding->bind_output("sum");
    Session(session).run(*binding);
  }
  EXPECT_EQ(y.to_vector<float>(), (Floats{11, -18}));
  EXPECT_EQ(binding->outputs()[0].to_vector<float>(), (Floats{15, -14}));
}

TEST(CppInterface, AFileIsReadAgainForEachSession) {
  const std::string path = ::testing::TempDir() + "cpp_interface_sum.onnx";
  std::ofstream(path, std::ios::binary) << sum_model();
  const Session one(path), two(path);
  std::remove(path.c_str());
  const Value x = Value::tensor<float>({1, 2}, {1, 2});
  EXPECT_EQ(one.run({"x"}, {x})[0].to_vector<float>(), two.run({"x"}, {x})[0].to_vector<float>());
}

TEST(CppIoBinding, WritesIntoBoundOutputsAndReturnsTheOthers) {
  const Session session = open(sum_model());
  IoBinding binding(session);
  Floats x = {1, 2, 3, 4}, sum(4, -1);
  binding.bind_input("x", Value::borrowed({2, 2}, x.data(), x.size()));
  binding.bind_output("positive");
  binding.bind_output("sum", Value::borrowed({2, 2}, sum.data(), sum.size()));
  EXPECT_EQ(binding.output_names(), (std::vector<std::string>{"positive", "sum"}));
  session.run(binding);
  EXPECT_EQ(sum, (Floats{11, -18, 13, -16}));
  ASSERT_EQ(binding.outputs().size(), 2u);
  EXPECT_EQ(binding.outputs()[0].to_vector<float>(), (Floats{11, 0, 13, 0}));
  EXPECT_EQ(binding.outputs()[1].data(), sum.data());
  x[0] = 100;
  session.run(binding);
  EXPECT_EQ(sum[0], 110);
  binding.clear_outputs();
  EXPECT_TRUE(binding.outputs().empty() && binding.output_names().empty());
  binding.clear_inputs();
  expect_error(error_of([&] { session.run(binding); }), ErrorCode::InvalidArgument, "'x'");
}

TEST(CppIoBinding, RefusesWhatDoesNotFitBeforeItWrites) {
  const Session session = open(sum_model());
  IoBinding binding(session);
  Floats small(2, -1);
  std::vector<int32_t> integers(4, -1);
  binding.bind_input("x", Value::tensor(ElementType::Float32, {2, 2}));
  binding.bind_output("positive", Value::borrowed({1, 2}, small.data(), small.size()));
  expect_error(error_of([&] { session.run(binding); }), ErrorCode::InvalidArgument, "'positive'");
  EXPECT_EQ(small, (Floats{-1, -1}));
  binding.bind_output("positive", Value::borrowed({2, 2}, integers.data(), integers.size()));
  expect_error(error_of([&] { session.run(binding); }), ErrorCode::InvalidArgument, "int32");
  EXPECT_EQ(integers[0], -1);
  const float constant = 0;
  expect_error(error_of([&] { binding.bind_output("sum", Value::borrowed({1}, &constant, 1)); }),
               ErrorCode::InvalidArgument, "written");
  expect_error(error_of([&] { binding.bind_output("sum", Value()); }), ErrorCode::InvalidArgument,
               "written");
  expect_error(error_of([&] { binding.bind_input("y", Value()); }), ErrorCode::InvalidArgument,
               "found 'y'");
  expect_error(error_of([&] { binding.bind_output("y"); }), ErrorCode::InvalidArgument,
               "found 'y'");
  expect_error(error_of([&] { open(sum_model()).run(binding); }), ErrorCode::InvalidArgument,
               "of the session");
}

TEST(CppInterface, TerminatesRunsAndTracesThem) {
  const Session session = open(sum_model(), SessionOptions().set_profiling(true));
  const Value x = Value::tensor<float>({1, 2}, {1, 2});
  RunOptions options, same = options;
  same.terminate();
  EXPECT_THROW(session.run({"x"}, {x}, {}, options), Error);
  options.clear_terminate();
  EXPECT_EQ(session.run({"x"}, {x}, {}, options)[0].to_vector<float>(), (Floats{11, -18}));
  const std::string path = ::testing::TempDir() + "cpp_interface_trace.json";
  ASSERT_TRUE(session.end_profiling(path));
  std::ifstream file(path);
  const std::string trace((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_NE(trace.find("Add"), std::string::npos) << trace;
  std::remove(path.c_str());
  EXPECT_FALSE(open(sum_model()).end_profiling(path));
  SessionOptions plain;
  plain.set_optimization_level(OptimizationLevel::None);
  EXPECT_EQ(open(sum_model(), plain).run({"x"}, {x})[1].to_vector<float>(), (Floats{11, 0}));
}

TEST(CppInterface, ThreadsShareASession) {
  const Session session = open(sum_model(), SessionOptions().set_threads(2));
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 1; t <= 8; ++t)
    threads.emplace_back([&, t] {
      IoBinding binding(session);
      Floats y(static_cast<size_t>(t) * 2);
      binding.bind_input("x", Value::tensor(ElementType::Float32, {t, 2}));
      binding.bind_output("sum", Value::borrowed({t, 2}, y.data(), y.size()));
      for (int i = 0; i < 50; ++i) {
        const auto number = static_cast<float>(t * 100 + i);
        const Value x = Value::tensor<float>({t, 2}, Floats(y.size(), number));
        if (session.run({"x"}, {x})[1].to_vector<float>().back() != number - 20) ++wrong;
        binding.bind_input("x", x);
        session.run(binding);
        if (y.back() != number - 20 || y.front() != number + 10) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace ortmodule::inference
