// Which graphs can run some rows of a batch at a time.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "inference/row_split.h"
#include "ir/text.h"
#include "ops/emit.h"
#include "ops/row_axes.h"

namespace ortmodule {
namespace {

struct Found {
  Reason why;
  RowSplit split;
};

Found split_of(const std::string& text, std::vector<std::string> symbols = {"n"}) {
  auto graph = parse_graph(text);
  infer(*graph);
  Found found{{}, {std::move(symbols), {}, {}}};
  SymbolValues sizes;
  for (const std::string& symbol : found.split.symbols) sizes.bind(symbol, 6);
  sizes.bind("t", 5);
  found.why = find_row_split(imported_rows(*graph, {}), sizes, found.split);
  return found;
}

void expect_split(const std::string& text, const std::vector<int>& inputs,
                  const std::vector<int>& outputs) {
  const Found found = split_of(text);
  EXPECT_FALSE(found.why) << *found.why;
  EXPECT_EQ(found.split.inputs, inputs);
  EXPECT_EQ(found.split.outputs, outputs);
}

TEST(RowSplit, FollowsImagesThroughAClassifier) {
  expect_split(R"(
    net (x: f32[n,3,16,16], w: f32[8,3,3,3], m: f32[8,10], b: f32[10]) => (y, best) {
      c = Conv<strides=[1,1], pads=[1,1,1,1], dilations=[1,1]> (x, w)
      r = Relu (c)
      g = ReduceMean<axes=[2,3], keepdims=0> (r)
      l = Gemm (g, m, b)
      y = Softmax<axis=-1> (l)
      best = ArgMax<axis=1, keepdims=0> (y)
    })",
               {0, kWhole, kWhole, kWhole}, {0, 0});
}

TEST(RowSplit, FollowsRowsThroughHeadsAndFlattenedProducts) {
  expect_split(R"(
    block (ids: i64[n,t], table: f32[100,32], mask: f32[n,1,1,t], w: f32[32,32]) => (y) {
      e = Gather<axis=0> (table, ids)
      f = Reshape<shape=[n*t,32]> (e)
      p = MatMul (f, w)
      q = Reshape<shape=[n,t,4,8]> (p)
      h = Transpose<perm=[0,2,1,3]> (q)
      k = Transpose<perm=[0,1,3,2]> (h)
      s = MatMul (h, k)
      a = Add (s, mask)
      z = Softmax<axis=-1> (a)
      o = MatMul (z, h)
      b = Transpose<perm=[2,0,1,3]> (o)
      y = ReduceMax<axes=[0], keepdims=0> (b)
    })",
               {0, kWhole, 0, kWhole}, {0});
}

TEST(RowSplit, KeepsConstantsThatAreTheSameForEachRow) {
  expect_split(R"(
    net (x: f32[n,4], c: f32[1,3]) => (y) {
      e = Expand<shape=[n,3]> (c)
      z = ConstantOfShape<shape=[n,2], value=1.0, dtype=f32> ()
      y = Concat<axis=1> (x, e, z)
    })",
               {0, kWhole}, {0});
}

TEST(RowSplit, SaysWhereRowsMeet) {
  const auto why = [](const std::string& body) {
    const Found found = split_of("net (x: f32[n,4]) => (y) {" + body + "}");
    return found.why.value_or("");
  };
  EXPECT_EQ(why("y = Softmax<axis=0> (x)"), "rows meet in a Softmax");
  EXPECT_EQ(why("s = ReduceSum<axes=[0], keepdims=1> (x); y = Sub (x, s)"),
            "rows meet in a ReduceSum");
  EXPECT_EQ(why("y = CumSum<axis=0> (x)"), "rows meet in a CumSum");
  EXPECT_EQ(why("t = Transpose<perm=[1,0]> (x); y = MatMul (x, t)"), "rows meet in a MatMul");
  EXPECT_EQ(why("y = Reshape<shape=[2*n,2]> (x); "), "");
  EXPECT_EQ(why("y = Reshape<shape=[4,n]> (x)"), "rows meet in a Reshape");
  EXPECT_EQ(why("y = Mul (x, {n})"), "a Mul computes with the number of rows");
  EXPECT_EQ(why("s = Slice<axis=0, start=0, end=1> (x); y = Add (x, s)"), "rows meet in a Slice");
  EXPECT_EQ(why("r = Range<start=0, limit=n, delta=1, dtype=f32> (); "
                "c = Unsqueeze<axes=[1]> (r); y = Add (x, c)"),
            "a Add computes with the numbers of the rows");
  EXPECT_EQ(why("c = ConstantOfShape<value=n, shape=[1], dtype=f32> (); y = Add (x, c)"),
            "a ConstantOfShape depends on the number of rows");
}

// mask[row, key] of a mask that was flattened, as torch's exporters write it.
std::string indexed_mask(const std::string& row_step, const std::string& keys) {
  return "net (m: f32[n,t]) => (y) {"
         "flat = Reshape<shape=[n*t]> (m);"
         "rows = Range<start=0, limit=n, delta=1, dtype=i64> ();"
         "keys = Range<start=0, limit=" +
         keys +
         ", delta=1, dtype=i64> ();"
         "r = Unsqueeze<axes=[1,2,3]> (rows); k = Unsqueeze<axes=[0,1,2]> (keys);"
         "starts = Mul (r, " +
         row_step +
         "); i = Add (k, starts);"
         "g = Gather<axis=0> (flat, i); y = Expand<shape=[n,1,t," +
         keys + "]> (g) }";
}

TEST(RowSplit, FollowsIndicesThatNameTheirOwnRow) {
  expect_split(indexed_mask("{t}", "t"), {0}, {0});
  expect_split(indexed_mask("{5}", "5"), {0}, {0});  // t is 5
  expect_split(R"(
    strided (x: f32[n,6]) => (y) {
      flat = Reshape<shape=[6*n]> (x)
      all = Range<start=0, limit=2*n, delta=1, dtype=i64> ()
      pairs = Reshape<shape=[n,2]> (all)
      starts = Mul (pairs, {3})
      wide = Cast<to=i32> (starts)
      i = Transpose<perm=[1,0]> (wide)
      y = Gather<axis=0> (flat, i)
    })",
               {0}, {1});
}

TEST(RowSplit, RefusesIndicesThatNameOtherRows) {
  const auto why = [](const std::string& text) { return split_of(text).why.value_or(""); };
  EXPECT_EQ(why(indexed_mask("{t}", "t+1")), "rows meet in a Gather");  // the next row's first
  EXPECT_EQ(why(indexed_mask("{2*t}", "t")), "rows meet in a Gather");  // every other row
  EXPECT_EQ(why(indexed_mask("{4}", "4")), "rows meet in a Gather");
  EXPECT_EQ(why("net (x: f32[n,4], w: f32[9,4]) => (y) {"
                "r = Range<start=0, limit=n, delta=1, dtype=i64> ();"
                "g = Gather<axis=0> (w, r); y = Add (x, g) }"),
            "rows meet in a Gather");  // a weight for each place in the batch
  EXPECT_EQ(
      why("net (x: f32[n,4]) => (y) {"
          "r = Range<start=1, limit=n+1, delta=1, dtype=i64> (); y = Gather<axis=0> (x, r) }"),
      "rows meet in a Range");
  EXPECT_EQ(why("net (x: f32[n,4]) => (x, r) {"
                "r = Range<start=0, limit=n, delta=1, dtype=i64> () }"),
            "output 'r' has the numbers of the rows");
}

TEST(RowSplit, LooksOnlyAtWhatOutputsNeed) {
  expect_split("net (x: f32[n,4]) => (y) { s = Softmax<axis=0> (x); y = Relu (x) }", {0}, {0});
}

}  // namespace
}  // namespace ortmodule
