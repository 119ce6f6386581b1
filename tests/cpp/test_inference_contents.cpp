// Contents of small inputs that decide sizes, and numbers among them that no size can be.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "importer/import_model.h"
#include "inference/inference_session.h"
#include "onnx/onnx_types.h"
#include "test_inference_models.h"

namespace ortmodule::testing {
namespace {

constexpr int64_t kFar = int64_t{1} << 41, kEnd = std::numeric_limits<int64_t>::max();

HostFeed integers(const std::vector<int64_t>& values, Sizes sizes) {
  return HostTensorView{DType::Int64, std::move(sizes), values.data()};
}

template <class T>
std::vector<T> content_of(const HostResult& result) {
  const HostTensor& tensor = result.tensors.at(0);
  const T* data = static_cast<const T*>(tensor.memory.data());
  return {data, data + element_count(tensor.sizes)};
}

TEST(Contents, ARangeOfFarNumbersIsRefusedAndNotCutOff) {
  const auto scalar = tensor_type(DType::Int64, {});
  InferenceSession session =
      session_of(model_of({{"start", scalar}, {"limit", scalar}}, {"y"},
                          {node("Range", {"start", "limit", "one"}, {"y"})},
                          {{"one", constant<int64_t>(DType::Int64, {}, {1})}}));
  const auto range = [&](int64_t start, int64_t limit) {
    const std::vector<int64_t> from = {start}, to = {limit};
    return content_of<int64_t>(session.run({integers(from, {}), integers(to, {})}).at(0));
  };
  EXPECT_EQ(range(5, 8), (std::vector<int64_t>{5, 6, 7}));
  try {
    range(kFar, kFar + 3);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'start' is 2199023255552"), std::string::npos)
        << error.what();
  }
  EXPECT_EQ(range(7, 7), std::vector<int64_t>{});
}

TEST(Contents, ABranchOnAFarNumberIsDecidedByTheNumberItself) {
  const auto branch = [](const char* op) {
    auto graph = std::make_shared<OnnxGraph>();
    graph->nodes = {node(op, {"x"}, {"z"})};
    graph->outputs = {{"z", {}}};
    return std::shared_ptr<const OnnxGraph>(graph);
  };
  InferenceSession session = session_of(model_of(
      {{"x", tensor_type(DType::Float32, {int64_t{1}})}, {"n", tensor_type(DType::Int64, {})}},
      {"y"},
      {node("Less", {"n", "far"}, {"c"}),
       node("If", {"c"}, {"y"},
            {{"then_branch", branch("Neg")}, {"else_branch", branch("Identity")}})},
      {{"far", constant<int64_t>(DType::Int64, {}, {kFar})}}));
  const std::vector<float> x = {3};
  for (const int64_t n : {kFar + 1, int64_t{5}, kFar + 1, kFar - 1, kFar, kEnd}) {
    const std::vector<int64_t> number = {n};
    const auto y = session.run({view(x, {1}), integers(number, {})});
    EXPECT_EQ(content_of<float>(y.at(0)), (std::vector<float>{n < kFar ? -3.0f : 3.0f})) << n;
  }
}

TEST(Contents, AFarEndOfASliceIsTheEndOfTheAxis) {
  InferenceSession session =
      session_of(model_of({{"x", tensor_type(DType::Float32, {int64_t{4}})},
                           {"start", tensor_type(DType::Int64, {int64_t{1}})},
                           {"end", tensor_type(DType::Int64, {int64_t{1}})}},
                          {"y"}, {node("Slice", {"x", "start", "end"}, {"y"})}));
  const std::vector<float> x = {1, 2, 3, 4};
  for (const auto& [from, to, expected] :
       std::vector<std::tuple<int64_t, int64_t, std::vector<float>>>{{1, 3, {2, 3}},
                                                                     {2, kEnd, {3, 4}},
                                                                     {-kEnd, 2, {1, 2}},
                                                                     {-kFar, kFar, x},
                                                                     {kEnd, kEnd, {}},
                                                                     {0, 2, {1, 2}}}) {
    const std::vector<int64_t> start = {from}, end = {to};
    EXPECT_EQ(content_of<float>(
                  session.run({view(x, {4}), integers(start, {1}), integers(end, {1})}).at(0)),
              expected)
        << from << " " << to;
  }
}

// Sizes are fixed for shapes that a tensor's content decides, not for data.
TEST(Contents, OneImportServesAllSizes) {
  std::vector<int64_t> places(100);
  std::iota(places.begin(), places.end(), 0);
  const std::vector<OnnxInitializer> constants = {
      {"table", constant<int64_t>(DType::Int64, {100}, places)},
      {"zero", constant<float>(DType::Float32, {}, {0})},
      {"one", constant<float>(DType::Float32, {}, {1})},
      {"first", constant<int64_t>(DType::Int64, {1}, {0})},
      {"number", constant<int64_t>(DType::Int64, {1, 1}, {7})}};
  const std::vector<OnnxNode> uses = {
      node("Slice", {"table", "first", "n", "first"}, {"y"}), node("Gather", {"table", "n"}, {"y"}),
      node("Expand", {"number", "n"}, {"y"}), node("Range", {"zero", "limit", "one"}, {"y"})};
  for (const OnnxNode& use : uses) {
    const OnnxModel model = model_of(
        {{"x", tensor_type(DType::Float32, {std::string("n")})}}, {"y"},
        {node("Shape", {"x"}, {"n"}), node("Squeeze", {"n"}, {"scalar"}),
         node("Cast", {"scalar"}, {"limit"}, {{"to", int64_t{onnx_number(DType::Float32)}}}), use},
        constants);
    ImportRequest request;
    request.inputs = {{DType::Float32, {5}}};
    request.forms = {{}};
    for (const SizeGuard& guard : import_model(model, request).guards)
      EXPECT_NE(guard.least, guard.most) << use.op << " fixes " << guard.expression;
  }
}

// A mask of the lengths of sequences, and one whose width is the largest length.
TEST(Contents, LengthsOfRowsAreDataWhereNoSizeDependsOnThem) {
  const std::vector<OnnxInitializer> constants = {
      {"zero", constant<int64_t>(DType::Int64, {}, {0})},
      {"one", constant<int64_t>(DType::Int64, {}, {1})},
      {"behind", constant<int64_t>(DType::Int64, {1}, {1})}};
  const std::vector<int64_t> lengths = {2, 4, 3};
  for (const bool by_length : {false, true}) {
    const OnnxNode width =
        by_length ? node("ReduceMax", {"lengths"}, {"width"}, {{"keepdims", int64_t{0}}})
                  : node("Gather", {"sizes", "one"}, {"width"});
    const OnnxModel model =
        model_of({{"x", tensor_type(DType::Float32, {std::string("n"), std::string("t")})},
                  {"lengths", tensor_type(DType::Int64, {std::string("n")})}},
                 {"y"},
                 {node("Shape", {"x"}, {"sizes"}), width,
                  node("Range", {"zero", "width", "one"}, {"places"}),
                  node("Unsqueeze", {"lengths", "behind"}, {"column"}),
                  node("Less", {"places", "column"}, {"y"})},
                 constants);
    ImportRequest request;
    request.inputs = {{DType::Float32, {3, 5}}, {DType::Int64, {3}, lengths.data()}};
    request.forms = {{}, {ValueForm::Kind::Tensor, 1, 1}};
    const ImportedModel imported = import_model(model, request);
    EXPECT_FALSE(imported.cut);
    EXPECT_EQ(imported.contents.empty(), !by_length);
    const bool fixes = std::ranges::any_of(
        imported.guards, [](const SizeGuard& guard) { return guard.least == guard.most; });
    EXPECT_EQ(fixes, by_length);
  }
}

}  // namespace
}  // namespace ortmodule::testing
