// Ids of the tables of a plan: which table each can index, and "none".
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "base/typed_id.h"

namespace ortmodule {
namespace {

using FruitId = Id<struct FruitTag>;
using TreeId = Id<struct TreeTag>;

template <class Table, class Index>
concept IsIndexedBy = requires(Table table, Index index) {
  table[index];
};

static_assert(IsIndexedBy<IdVector<FruitId, int>, FruitId>);
static_assert(!IsIndexedBy<IdVector<FruitId, int>, TreeId>);
static_assert(!IsIndexedBy<IdVector<FruitId, int>, int>);

TEST(TypedId, IsNoneUntilItIsGiven) {
  const FruitId none;
  const FruitId first(0);
  EXPECT_FALSE(none);
  EXPECT_TRUE(first);
  EXPECT_LT(none, first);
  EXPECT_EQ(FruitId(0), first);
  std::ostringstream text;
  text << none << " " << FruitId(12);
  EXPECT_EQ(text.str(), "-1 12");
}

TEST(TypedId, IsWhatAddReturnsAndIdsLists) {
  IdVector<FruitId, std::string> fruits;
  const FruitId apple = fruits.add("apple");
  const FruitId pear = fruits.add("pear");
  EXPECT_EQ(fruits[apple], "apple");
  EXPECT_EQ(fruits[pear], "pear");
  std::vector<FruitId> ids;
  for (FruitId id : fruits.ids()) ids.push_back(id);
  EXPECT_EQ(ids, (std::vector<FruitId>{apple, pear}));
}

}  // namespace
}  // namespace ortmodule
