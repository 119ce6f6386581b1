#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "base/dim_expr.h"
#include "base/error.h"

namespace ortmodule {
namespace {

DimExpr parse(std::string_view text) { return DimExpr::parse(text); }

TEST(DimExpr, NormalFormMakesEqualityStructural) {
  const DimExpr a = DimExpr::symbol("a");
  const DimExpr b = DimExpr::symbol("b");
  EXPECT_EQ((a + b) * (a - b), a * a - b * b);
  EXPECT_EQ(a + a - 2 * a, DimExpr(0));
  EXPECT_EQ(parse("b*2*a + 1"), parse("1 + a*b + b*a"));
  EXPECT_EQ(parse("b*2*a + 1").text(), "2*a*b + 1");
  EXPECT_FALSE(a == b);
  EXPECT_EQ(parse("a - a").value(), 0);
}

TEST(DimExpr, TextReadsBack) {
  for (const char* text :
       {"0", "-7", "n", "-n", "-2*n + 3", "2*a*b - c", "((n + 1)//(2))", "3*((n)%(8))*m",
        "max(a,2*b)", "min(max(a,b),((c)//(3))) - 1", "((-n)//(2))", "-((n)//(2))*m"})
    EXPECT_EQ(parse(parse(text).text()), parse(text)) << text;
  EXPECT_EQ(parse("-9223372036854775808").value(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(parse("9223372036854775807").value(), std::numeric_limits<int64_t>::max());
}

TEST(DimExpr, Simplifies) {
  const DimExpr n = DimExpr::symbol("n"), k = DimExpr::symbol("k");
  EXPECT_EQ(DimExpr::floor_div(6 * n + 4, 2), 3 * n + 2);
  EXPECT_EQ(DimExpr::floor_div(n, n), DimExpr(1));
  EXPECT_EQ(DimExpr::floor_div(6 * n * n * k + 4 * n, 2 * n), 3 * n * k + 2);
  EXPECT_EQ(DimExpr::floor_div(6 * n + 4, 2 * n).text(), "((6*n + 4)//(2*n))");
  EXPECT_EQ(DimExpr::floor_div(n * n, n * n * k).text(), "((n*n)//(k*n*n))");
  EXPECT_EQ(DimExpr::mod(n, 1), DimExpr(0));
  EXPECT_EQ(DimExpr::max(n, n), n);
  EXPECT_EQ(DimExpr::floor_div(-7, 2).value(), -4);
  EXPECT_EQ(DimExpr::mod(-7, 2).value(), 1);
}

TEST(DimExpr, SubstituteKeepsNormalForm) {
  const DimExpr n = DimExpr::symbol("n");
  const DimExpr m = DimExpr::symbol("m");
  EXPECT_EQ(parse("n*n + m").substitute({{"n", m + 1}}), parse("m*m + 3*m + 1"));
  EXPECT_EQ(parse("max(n,m)").substitute({{"n", m}}), m);
  EXPECT_EQ(parse("n%m").substitute({{"m", DimExpr(1)}}), DimExpr(0));
  EXPECT_EQ(parse("((n)//(2))").substitute({{"n", 4 * n}}), 2 * n);
}

TEST(DimExpr, Evaluates) {
  SymbolValues values;
  values.bind("n", 5);
  values.bind("m", 3);
  EXPECT_EQ(parse("2*n*m - n//m + n%m + max(n,m) + min(n,m)").evaluate(values), 39);
  EXPECT_EQ(parse("(0-n)//m").evaluate(values), -2);
  EXPECT_THROW(parse("k").evaluate(values), Error);
  EXPECT_THROW(parse("n//(m-3)").evaluate(values), Error);
  EXPECT_THROW(values.bind("n", 6), Error);
  EXPECT_NO_THROW(values.bind("n", 5));
}

TEST(SymbolValues, HoldsManyInTheirOrder) {
  SymbolValues values;
  for (int64_t i = 0; i < 500; ++i) {
    const std::string name = str("x", i);
    EXPECT_EQ(values.find(name), nullptr) << name;
    values.bind(name, 3 * i);
    for (int64_t known = 0; known <= i; known += 7) {
      const int64_t* value = values.find(str("x", known));
      ASSERT_NE(value, nullptr) << known << " of " << i;
      EXPECT_EQ(*value, 3 * known);
    }
  }
  EXPECT_NO_THROW(values.bind("x499", 3 * 499));
  EXPECT_THROW(values.bind("x499", 1), Error);
  EXPECT_EQ(values.find("y"), nullptr);
  ASSERT_EQ(values.entries().size(), 500u);
  EXPECT_EQ(values.entries()[100].first, "x100");
}

TEST(DimExpr, Symbols) {
  std::vector<std::string> names;
  parse("b*a + max(c, b//2)").collect_symbols(names);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"a", "b", "c"}));
  std::string name;
  EXPECT_TRUE(parse("s0").is_symbol(&name));
  EXPECT_EQ(name, "s0");
  EXPECT_FALSE(parse("2*s0").is_symbol());
  EXPECT_FALSE(parse("2").is_symbol());
}

TEST(DimExpr, RefusesBadText) {
  for (const char* text :
       {"", "2 +", ".5", "1.5", "(n", "n)", "max(n)", "a b", "99999999999999999999", "n//0 //"})
    EXPECT_THROW(parse(text), Error) << text;
}

TEST(DimExpr, RefusesWhatDoesNotFit64Bits) {
  for (const char* text :
       {"-9223372036854775808//-1", "9223372036854775807 + 1", "9223372036854775807*2*n",
        "9223372036854775807*n + n", "-9223372036854775808 - 1"})
    EXPECT_THROW(parse(text), Error) << text;
  EXPECT_EQ(parse("-9223372036854775808 % -1").value(), 0);
  EXPECT_EQ(parse("-9223372036854775808 % 3").value(), 1);
  EXPECT_EQ(parse("-9223372036854775808*n").text(), "-9223372036854775808*n");
  SymbolValues values;
  values.bind("n", std::numeric_limits<int64_t>::max());
  for (const char* text : {"n*n", "n + n", "n//(0 - n) - n - n"})
    EXPECT_THROW(parse(text).evaluate(values), Error) << text;
}

TEST(DimExpr, RefusesWhatIsTooDeep) {
  const size_t many = 200'000;
  EXPECT_THROW(parse(std::string(many, '(')), Error);
  EXPECT_THROW(parse(std::string(many, '-') + "n"), Error);
  std::string divided = "n";
  std::string multiplied = "(a + b)";
  for (size_t i = 0; i < 5000; ++i) divided += "//2";
  for (char c = 'c'; c < 'z'; ++c) multiplied += str("*(", c, " + ", c, c, ")");
  EXPECT_THROW(parse(divided), Error);
  EXPECT_THROW(parse(multiplied), Error);
  DimExpr halved = DimExpr::symbol("n");
  for (int i = 0; i < 200; ++i) halved = DimExpr::floor_div(halved + 1, 2);
  EXPECT_EQ(parse(halved.text()), halved);
}

TEST(DimExpr, ProductOfDims) {
  EXPECT_EQ(product({2, DimExpr::symbol("n"), 3}), 6 * DimExpr::symbol("n"));
  EXPECT_EQ(product({}), DimExpr(1));
}

}  // namespace
}  // namespace ortmodule
