// Shapes of calls: their keys, and the values that symbols get from them.
#include <gtest/gtest.h>

#include "gradient/build_gradient.h"
#include "session/symbol_binder.h"
#include "test_session_piece.h"

namespace ortmodule {
namespace {

class SymbolBinderTest : public testing::Test {
 protected:
  const ExportedPiece piece_ = rows_piece();
  const std::unique_ptr<Graph> joint_ = build_gradient(*piece_.graph);
  const SymbolBinder binder_{piece_, piece_.graph->inputs().size(), *joint_};
};

TEST_F(SymbolBinderTest, EqualShapesHaveEqualKeys) {
  const PlanKey key = binder_.key_of(RowsCall(4));
  EXPECT_EQ(key, binder_.key_of(RowsCall(4, 7))) << "the counter is in no plan";
  EXPECT_NE(key, binder_.key_of(RowsCall(5)));
  EXPECT_NE(key, binder_.key_of(RowsCall(4, 0, 20)));
}

TEST_F(SymbolBinderTest, AKeyMatchesTheCallsThatItIsMadeOf) {
  const PlanKey key = binder_.key_of(RowsCall(4));
  EXPECT_TRUE(binder_.is_key_of(RowsCall(4), key));
  EXPECT_TRUE(binder_.is_key_of(RowsCall(4, 7), key));
  EXPECT_FALSE(binder_.is_key_of(RowsCall(5), key));
  EXPECT_FALSE(binder_.is_key_of(RowsCall(4, 0, 20), key));
  const RowsCall whole(4);
  CallShapes part = whole;
  part.arguments = part.arguments.first(1);
  EXPECT_FALSE(binder_.is_key_of(part, key));
  EXPECT_FALSE(binder_.is_key_of(whole, binder_.key_of(part)));
}

TEST_F(SymbolBinderTest, PlansSeeOnlyTheSymbolsThatTheyDependOn) {
  const SymbolValues all = binder_.bind_all(RowsCall(4, 7));
  ASSERT_TRUE(all.find("counter"));
  EXPECT_EQ(*all.find("counter"), 7);
  EXPECT_EQ(*all.find("b"), 4);
  const Signature signature = binder_.signature_of(RowsCall(4, 7, 20));
  const PlanRequest& request = signature.request;
  EXPECT_EQ(request.symbols.find("counter"), nullptr);
  EXPECT_EQ(*request.symbols.find("b"), 4);
  EXPECT_EQ(request.arguments, (std::vector<Layout>{{{4, 16}, {20, 1}, 0}, {{16}, {1}, 0}}));
  EXPECT_EQ(request.output_strides, (std::vector<Sizes>{{16, 1}}));
  EXPECT_TRUE(signature.key == binder_.key_of(RowsCall(4, 7, 20)));
}

TEST_F(SymbolBinderTest, SizesThatContradictTheGraphAreRefused) {
  const std::vector<int64_t> one{1}, two{4, 16}, wrong{4, 15}, wide{16, 16}, unit{1, 1};
  const std::vector<int64_t> symbols{0, 4}, others{0, 5}, none;
  const auto refused = [&](const std::vector<LayoutView>& arguments,
                           const std::vector<int64_t>& given) {
    try {
      binder_.bind_all({arguments, given});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("bound");
  };
  const LayoutView x{two, unit}, w{std::span(wide).first(1), one};
  EXPECT_EQ(refused({x, w}, symbols), "bound");
  EXPECT_EQ(refused({w, w}, symbols), "[forward] argument x must have rank 2, but found 1");
  EXPECT_EQ(refused({{wrong, unit}, w}, symbols),
            "[forward] argument x must have size 16 in dim 1, but found 15");
  EXPECT_NE(refused({x, w}, others).find("b"), std::string::npos) << "4 rows are not 5";
  EXPECT_EQ(refused({x}, symbols), "[forward] there must be 2 arguments, but found 1");
  EXPECT_EQ(refused({x, w}, none),
            "[forward] symbol counter must have a value, but found only 0 values");
}

}  // namespace
}  // namespace ortmodule
