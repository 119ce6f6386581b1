// A session over shapes: which plans it makes, shares and gives up.
#include <gtest/gtest.h>

#include <thread>

#include "ir/text.h"
#include "ops/emit.h"
#include "session.h"

namespace ortmodule {
namespace {

/// Three softmaxes over `b` rows in a row, each of which backward reads.
ExportedPiece rows_piece() {
  ExportedPiece piece;
  piece.graph = parse_graph(R"(rows (x: f32[b,16], w: param grad f32[16]) => (y) {
    a = Mul (x, w)
    c = Softmax<axis=-1> (a)
    d = Mul (c, w)
    e = Softmax<axis=-1> (d)
    f = Mul (e, w)
    g = Softmax<axis=-1> (f)
    y = Mul (g, w)
  })");
  infer(*piece.graph);
  piece.arguments = {{BoundInput::Kind::Symbol, -1, "b"},
                     {BoundInput::Kind::Tensor, 0, ""},
                     {BoundInput::Kind::Tensor, 1, ""}};
  piece.output_strides = {{16, 1}};
  return piece;
}

std::vector<Layout> layouts(int64_t rows) { return {{{rows, 16}, {16, 1}, 0}, {{16}, {1}, 0}}; }

SessionOptions at_level(int level) {
  SessionOptions options;
  options.memory.level = level;
  return options;
}

TEST(Session, AChoiceThatIsHeldOutlivesTheNextOne) {
  Session session(rows_piece(), at_level(1));
  session.plan_for(layouts(8), {8});
  const auto held = session.memory_choice();
  ASSERT_TRUE(held);
  const int64_t before = held->before.peak_bytes;
  session.plan_for(layouts(800), {800});  // outgrows it
  EXPECT_EQ(held->before.peak_bytes, before);
  EXPECT_GT(session.memory_choice()->before.peak_bytes, 50 * before);
}

TEST(Session, ChoicesAreReadWhileOtherShapesArePlanned) {
  Session session(rows_piece(), at_level(1));
  session.plan_for(layouts(2), {2});
  std::thread planning([&] {
    for (int64_t rows = 4; rows < 10'000; rows *= 3) session.plan_for(layouts(rows), {rows});
  });
  int64_t last = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto choice = session.memory_choice();
    EXPECT_GE(choice->before.peak_bytes, last);
    EXPECT_GE(choice->before.peak_bytes, choice->after.peak_bytes);
    last = choice->before.peak_bytes;
  }
  planning.join();
}

}  // namespace
}  // namespace ortmodule
