#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "onnx/onnx_file.h"
#include "onnx/onnx_reader.h"
#include "onnx_message.h"

namespace ortmodule {
namespace {

namespace fs = std::filesystem;

OnnxModel parse(const Message& message) { return parse_onnx_model(message.bytes(), "m.onnx"); }

std::string error_of(const Message& message) {
  try {
    parse(message);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// The tensor as text, read as an initializer.
std::string read_tensor(const Message& tensor, int field = 5) {
  const OnnxModel model = parse(model_with(tensor, field));
  return ModelText::of(model.graph.initializers.at(0).tensor);
}

std::string tensor_error(const Message& tensor, int field = 5) {
  return error_of(model_with(tensor, field));
}

TEST(OnnxReader, RawTensors) {
  EXPECT_EQ(read_tensor(tensor_message("w", 1, {2}).text(9, "abcdefgh")),
            "float[2,] 6162636465666768");
  EXPECT_EQ(read_tensor(tensor_message("w", 8, {0})), "string[0,] ");
  EXPECT_EQ(read_tensor(tensor_message("w", 1, {1u << 30u, 0, 1u << 20u})),
            "float[1073741824,0,1048576,] ");
  EXPECT_EQ(read_tensor(tensor_message("w", 22, {3}).text(9, "\x21\x03")), "int4[3,] 2103");
  EXPECT_EQ(read_tensor(tensor_message("w", 27, {5}).text(9, "abcd")), "float6e2m3[5,] 61626364");
  EXPECT_EQ(read_tensor(tensor_message("w", 9, {2}).text(9, std::string_view("\0\1", 2))),
            "bool[2,] 0001");
}

TEST(OnnxReader, TypedTensors) {
  const Message floats = tensor_message("w", 1, {3});
  const std::string expected = "float[3,] 0000803f0000004000004040";
  EXPECT_EQ(read_tensor(Message(floats).packed_fixed<float>(4, {1, 2, 3})), expected);
  EXPECT_EQ(read_tensor(Message(floats).float32(4, 1).float32(4, 2).float32(4, 3)), expected);
  EXPECT_EQ(read_tensor(Message(floats).packed_fixed<float>(4, {1, 2}).float32(4, 3)), expected);
  EXPECT_EQ(read_tensor(tensor_message("w", 11, {1}).float64(10, 1)),
            "double[1,] 000000000000f03f");
  EXPECT_EQ(read_tensor(tensor_message("w", 14, {1}).packed_fixed<float>(4, {1, 2})),
            "complex64[1,] 0000803f00000040");
  EXPECT_EQ(read_tensor(tensor_message("w", 15, {1}).packed_fixed<double>(10, {1, 2})),
            "complex128[1,] 000000000000f03f0000000000000040");
  EXPECT_EQ(read_tensor(tensor_message("w", 7, {2}).packed(7, {1, static_cast<uint64_t>(-2)})),
            "int64[2,] 0100000000000000feffffffffffffff");
  EXPECT_EQ(read_tensor(tensor_message("w", 7, {2}).number(7, 1).packed(7, {2})),
            "int64[2,] 01000000000000000200000000000000");
  EXPECT_EQ(read_tensor(tensor_message("w", 13, {1}).packed(11, {~uint64_t{0}})),
            "uint64[1,] ffffffffffffffff");
  EXPECT_EQ(read_tensor(tensor_message("w", 12, {1}).packed(11, {0xfffffffe})),
            "uint32[1,] feffffff");
  EXPECT_EQ(read_tensor(tensor_message("w", 8, {2}).text(6, "a").text(6, "")), "string[2,]  a ");
}

// Blocks of the heap that stay with the model would keep the pages of what reading it needs.
TEST(OnnxReader, SmallDecodedTensorsLieTogether) {
  const auto integers = [](int64_t count) {
    Message tensor = tensor_message("w", 3, {static_cast<uint64_t>(count)});
    for (int64_t i = 0; i < count; ++i) tensor.number(5, static_cast<uint64_t>(i % 100));
    return tensor;
  };
  Message graph;
  for (int64_t count : {1, 700, 5000}) graph.message(5, integers(count));
  const OnnxModel model = parse(model_message(graph));
  const std::vector<OnnxInitializer>& made = model.graph.initializers;
  ASSERT_EQ(made.size(), 3U);
  EXPECT_EQ(made[0].tensor.bytes.data() + 16, made[1].tensor.bytes.data());
  EXPECT_EQ(made[1].tensor.bytes.owner(), made[0].tensor.bytes.owner());
  EXPECT_NE(made[2].tensor.bytes.owner(), made[0].tensor.bytes.owner()) << "large ones are apart";
  EXPECT_EQ(made[1].tensor.bytes.data()[699], 99);
  EXPECT_EQ(made[2].tensor.bytes.data()[4999], 99);
}

// Types without a field of their own are in int32_data, as numbers or as bits.
TEST(OnnxReader, TensorsInInt32Data) {
  const auto minus_two = static_cast<uint64_t>(-2);
  const std::vector<std::pair<int, std::string>> cases = {{6, "int32[2,] 01000000feffffff"},
                                                          {5, "int16[2,] 0100feff"},
                                                          {4, "uint16[2,] 0100feff"},
                                                          {3, "int8[2,] 01fe"},
                                                          {2, "uint8[2,] 01fe"},
                                                          {10, "float16[2,] 0100feff"},
                                                          {16, "bfloat16[2,] 0100feff"},
                                                          {17, "float8e4m3fn[2,] 01fe"},
                                                          {24, "float8e8m0[2,] 01fe"}};
  for (const auto& [type, expected] : cases)
    EXPECT_EQ(read_tensor(tensor_message("w", type, {2}).packed(5, {1, minus_two})), expected);
  EXPECT_EQ(read_tensor(tensor_message("w", 10, {1}).number(5, 0xfffe)), "float16[1,] feff");
  EXPECT_EQ(read_tensor(tensor_message("w", 9, {2}).packed(5, {0, 1})), "bool[2,] 0001");
  EXPECT_EQ(read_tensor(tensor_message("w", 22, {3}).packed(5, {0x21, 0x0f})), "int4[3,] 210f");
  EXPECT_EQ(read_tensor(tensor_message("w", 25, {5}).packed(5, {0xe4, 1})), "uint2[5,] e401");
  EXPECT_EQ(read_tensor(tensor_message("w", 27, {5}).packed(5, {1, 2, 3, 63, 33})),
            "float6e2m3[5,] 8130fc21");
}

TEST(OnnxReader, SparseTensorsBecomeDense) {
  EXPECT_EQ(read_tensor(sparse_message(), 15),
            "float[2,3,] 00000000000000000000c03f000020400000000000000000");
  EXPECT_EQ(parse(model_with(sparse_message(), 15)).graph.initializers[0].name, "s");
  const Message linear = tensor_message("", 7, {1}).packed(7, {2});
  const Message text = tensor_message("s", 8, {1}).text(6, "a");
  const Message sparse = Message().message(1, text).message(2, linear).number(3, 4);
  EXPECT_EQ(read_tensor(sparse, 15), "string[4,]    a ");
  const Message node = node_message("Constant", {}, {"y"})
                           .message(5, attr_message("sparse_value", 11).message(22, sparse));
  const OnnxModel model = parse(model_message(Message().message(1, node)));
  EXPECT_EQ(std::get<OnnxTensor>(model.graph.nodes[0].attrs[0].second).dims,
            std::vector<int64_t>{4});
}

TEST(OnnxReader, WrongTensors) {
  const Message w = tensor_message("w", 1, {2});
  EXPECT_EQ(tensor_error(Message(w).text(9, "abcd")),
            "[onnx] m.onnx: a tensor of type float and sizes [2] must have 8 bytes, but found 4 "
            "(tensor 'w')");
  const std::vector<std::pair<Message, const char*>> cases = {
      {Message(w).packed_fixed<float>(4, {1, 2, 3}), "must have 2 numbers, but found 3"},
      {Message(w).float32(4, 1), "must have 2 numbers, but found 1"},
      {Message(w).packed_fixed<float>(4, {1, 2}).text(9, "a"), "raw or typed, but found both"},
      {Message(w).packed(5, {1, 2}), "must be in field 4, but found it in 5"},
      {Message(w).packed(5, {1, 2}).packed(7, {1, 2}),
       "must be in one field, but found it in 5 and 7"},
      {Message(w).text(4, "abcdefghi"), "must have a multiple of 4 bytes, but found 9"},
      {Message(w).float32(4, 1).float32(4, 2).number(4, 1),
       "field 4 must be 4 bytes, but found a varint"},
      {Message(w).message(3, Message()), "must be whole"},
      {tensor_message("w", 3, {1}).packed(5, {256}), "must fit in 8 bits, but found 256"},
      {tensor_message("w", 27, {1}).packed(5, {64}), "must fit in 6 bits, but found 64"},
      {tensor_message("w", 7, {1}).text(7, "\x80"), "must be complete varints"},
      {tensor_message("w", 7, {3}).packed(7, {1, 300}), "must have 3 numbers, but found 2"},
      {tensor_message("w", 9, {1}).text(9, "\x02"), "must be 0 or 1"},
      {tensor_message("w", 8, {2}).text(6, "a"), "must have 2 strings, but found 1"},
      {tensor_message("w", 8, {1}).text(9, "a"), "must hold them as strings"},
      {tensor_message("w", 0, {1}).text(9, "a"), "must be one of ONNX's, but found 0"},
      {tensor_message("w", 99, {1}).text(9, "a"), "must be one of ONNX's, but found 99"},
      {tensor_message("w", 1, {static_cast<uint64_t>(-1)}), "must not be negative, but found [-1]"},
      {tensor_message("w", 1, {uint64_t{1} << 31u, uint64_t{1} << 31u}), "less than 2^59 elements"},
      {tensor_message("w", 1, {uint64_t{1} << 32u, uint64_t{1} << 32u, 0, 16}),
       "less than 2^59 elements"},
      {tensor_message("w", 2, {uint64_t{1} << 58u}).packed(5, {1}),
       "must have 288230376151711744 numbers, but found 1"}};
  for (const auto& [tensor, message] : cases)
    EXPECT_NE(tensor_error(tensor).find(message), std::string::npos) << tensor_error(tensor);
  EXPECT_NE(tensor_error(tensor_message("", 1, {0})).find("must have a name"), std::string::npos);
}

TEST(OnnxReader, WrongSparseTensors) {
  auto sparse = [](std::vector<uint64_t> indices, std::initializer_list<uint64_t> sizes,
                   std::vector<uint64_t> dims) {
    const Message values = tensor_message("s", 1, {2}).packed_fixed<float>(4, {1, 2});
    Message to = Message().message(1, values);
    to.message(2, tensor_message("", 7, sizes).packed(7, indices));
    for (uint64_t dim : dims) to.number(3, dim);
    return tensor_error(to, 15);
  };
  EXPECT_EQ(sparse({0, 1}, {2}, {2}), "no error");
  EXPECT_EQ(sparse({0, 4}, {2}, {4}),
            "[onnx] m.onnx: an index of a sparse tensor must be below 4, but found 4 (tensor 's')");
  const std::vector<std::pair<std::string, const char*>> cases = {
      {sparse({0, static_cast<uint64_t>(-1)}, {2}, {4}), "must be below 4, but found -1"},
      {sparse({0, 0, 0, 3}, {2, 2}, {2, 3}), "must be below 3, but found 3"},
      {sparse({3, 3}, {2}, {4}), "must be ascending, but found 3 after 3"},
      {sparse({0, 1, 2}, {3}, {4}), "indices of a sparse tensor must be int64"},
      {sparse({0, 1}, {2}, {uint64_t{1} << 40u}), "sparse tensors must not take more than"},
      {sparse({0, 0, 0, 1}, {2, 2}, {0, 2}), "must be below 0, but found 0"}};
  for (const auto& [error, message] : cases)
    EXPECT_NE(error.find(message), std::string::npos) << error;
  EXPECT_NE(tensor_error(Message(), 15).find("must be one of ONNX's"), std::string::npos);
}

TEST(OnnxReader, AttributesAndSubgraphs) {
  EXPECT_EQ(ModelText::of(parse(model_of_attributes())),
            R"(ir 10 of 
opset '' 21
graph main
node choice = .If.: cond -> y
  then_branch: {
graph yes
output c: tensor int64[1,]
node  = .Constant.: -> c
  value: int64[1,] 0500000000000000
}
  f: f 0.5
  i: i -3
  s: s a)"
            "\xff"
            R"(
  fs: (f 1; f 2; f 3; )
  is: (i 4; i 5; i 6; )
  ss: (s a; s ; )
  ts: (int64[1,] 0500000000000000; int64[1,] 0500000000000000; )
  gs: ({
graph yes
output c: tensor int64[1,]
node  = .Constant.: -> c
  value: int64[1,] 0500000000000000
}; )
  tp: tensor float[2,3,]
  none: ()
  zero: i 0
meta key=value
)");
}

TEST(OnnxReader, AttributesWithoutAType) {
  const Message node =
      node_message("Op", {}, {"y"}).message(5, Message().text(1, "axis").number(3, 7));
  const OnnxModel model = parse(model_message(Message().message(1, node)));
  EXPECT_EQ(std::get<int64_t>(model.graph.nodes[0].attrs[0].second), 7);
}

TEST(OnnxReader, WrongNodes) {
  auto attr_error = [](const Message& attr) {
    return error_of(model_message(
        Message().message(1, node_message("Op", {"x"}, {"y"}).text(3, "n").message(5, attr))));
  };
  EXPECT_EQ(
      attr_error(attr_message("a", 1).number(3, 1)),
      "[onnx] m.onnx: attribute 'a' of type 1 must have its value in field 2, but found it in "
      "3 (node 'n')");
  const std::vector<std::pair<std::string, const char*>> cases = {
      {attr_error(Message().text(1, "a")), "must be of a type of ONNX, but found 0"},
      {attr_error(attr_message("a", 15)), "must be of a type of ONNX, but found 15"},
      {attr_error(Message().number(20, 2)), "an attribute must have a name"},
      {attr_error(attr_message("a", 4)), "must have one value, but found 0"},
      {attr_error(attr_message("a", 2).number(3, 1).float32(2, 1)), "found fields 3 and 2"},
      {attr_error(attr_message("a", 2).float32(3, 1)),
       "field 3 must be a varint, but found 4 bytes"},
      {error_of(model_message(Message().message(1, Message().text(2, "y")))), "must have an op"},
      {error_of(model_message(Message().message(1, node_message("Op", {"\xc0\x80"}, {})))),
       "text must be UTF-8"},
      {error_of(Message().number(1, 3)), "must be an ONNX model, but found no graph"},
      {error_of(model_message(Message()).message(7, Message())), "must have one graph"},
      {error_of(Message().raw_text("no model")), "must be of a known wire type"},
      {error_of(model_message(Message()).message(25, Message())), "a function must have a name"},
      {error_of(
           model_message(Message().message(11, value_message("x", tensor_type_message(77, {}))))),
       "must be one of ONNX's, but found 77 (value 'x')"}};
  for (const auto& [error, message] : cases)
    EXPECT_NE(error.find(message), std::string::npos) << error;
}

TEST(OnnxReader, Functions) {
  EXPECT_EQ(ModelText::of(parse(model_of_functions())), R"(ir 10 of 
opset '' 21
graph 
node  = mine.Leak.fast: a -> b
function mine.Leak.fast: x -> y with slope
  beta: f 2
opset '' 20
node  = .LeakyRelu.: x -> y
  alpha: ref slope 1
)");
}

TEST(OnnxReader, Types) {
  EXPECT_EQ(ModelText::of(parse(model_of_types())), R"(ir 10 of 
opset '' 21
graph 
input sized: tensor float16[4,n,?,?,]
input any_rank: tensor uint16
input list: sequence undefined of tensor float[]
input maybe: optional undefined of tensor float16[4,n,?,?,]
input map: map string of tensor float[]
input sparse: sparse float
input untyped: unknown undefined
value between: tensor float16[4,n,?,?,]
)");
}

TEST(OnnxReader, UnknownFieldsAreSkipped) {
  const Message unknown = Message().number(900, 1).text(901, "x").float32(902, 1).float64(903, 1);
  Message node = node_message("Relu", {"x"}, {"y"}).raw_text(unknown.bytes());
  Message graph = Message().message(1, node).raw_text(unknown.bytes());
  const OnnxModel model = parse(model_message(graph).raw_text(unknown.bytes()));
  EXPECT_EQ(model.graph.nodes[0].op, "Relu");
}

/// Files in a folder of their own, with a folder beside it.
class OnnxReaderFiles : public testing::Test {
 protected:
  OnnxReaderFiles() : root_(fs::temp_directory_path() / str("ortmodule_reader_", getpid())) {
    fs::create_directories(root_ / "model" / "inner");
    fs::create_directories(root_ / "other");
  }
  ~OnnxReaderFiles() override { fs::remove_all(root_); }

  fs::path at(const std::string& name) const { return root_ / name; }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(at(name), std::ios::binary) << bytes;
  }
  using Entries = std::vector<std::pair<std::string, std::string>>;
  OnnxModel read(const Entries& entries, const std::string& path = "model/m.onnx") const {
    write("model/m.onnx", model_with(external_message("w", {2}, entries)).bytes());
    return read_onnx_model(at(path).string());
  }
  std::string data(const Entries& entries) const {
    return std::string(read(entries).graph.initializers[0].tensor.bytes.view());
  }
  std::string error(const Entries& entries) const {
    try {
      read(entries);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

 private:
  fs::path root_;
};

TEST_F(OnnxReaderFiles, ExternalData) {
  write("model/w.bin", "0123456789abcdef");
  write("model/inner/w.bin", "inner567");
  EXPECT_EQ(data({{"location", "w.bin"}}), "01234567");
  EXPECT_EQ(data({{"location", "w.bin"}, {"offset", "8"}}), "89abcdef");
  EXPECT_EQ(data({{"length", "8"}, {"offset", "4"}, {"location", "./w.bin"}}), "456789ab");
  EXPECT_EQ(data({{"location", "inner/w.bin"}, {"checksum", "00"}}), "inner567");
  Message graph;
  graph.message(5, external_message("a", {2}, {{"location", "w.bin"}}));
  graph.message(5, external_message("b", {2}, {{"location", "./w.bin"}, {"offset", "1"}}));
  const OnnxModel two = parse_onnx_model(model_message(graph).bytes(), "m", at("model").string());
  const auto& tensors = two.graph.initializers;
  EXPECT_EQ(tensors[0].tensor.bytes.data() + 1, tensors[1].tensor.bytes.data());  // mapped once
}

TEST_F(OnnxReaderFiles, ExternalDataOutsideOfTheFolder) {
  write("other/secret.bin", "outside!");
  fs::create_symlink(at("other/secret.bin"), at("model/link.bin"));
  fs::create_symlink(at("other"), at("model/folder"));
  const std::string absolute = at("other/secret.bin").string();
  for (const std::string& path : {std::string("../other/secret.bin"), absolute, std::string(),
                                  std::string("inner/../../other/secret.bin")})
    EXPECT_EQ(error({{"location", path}}),
              str("[onnx] ", at("model/m.onnx").string(),
                  ": external data must be a path inside the model's folder, but found '", path,
                  "' (tensor 'w')"));
  for (const char* path : {"link.bin", "folder/secret.bin"})
    EXPECT_NE(error({{"location", path}}).find("must lie in the model's folder"),
              std::string::npos);
}

TEST_F(OnnxReaderFiles, ExternalDataThroughLinks) {
  write("model/w.bin", "01234567");
  fs::create_symlink("w.bin", at("model/link.bin"));
  EXPECT_EQ(data({{"location", "link.bin"}}), "01234567");
  // A model that is a link finds its data beside the link and beside the file.
  fs::create_symlink(at("model/m.onnx"), at("other/m.onnx"));
  const OnnxModel moved = read({{"location", "w.bin"}}, "other/m.onnx");
  EXPECT_EQ(moved.graph.initializers[0].tensor.bytes.view(), "01234567");
  fs::create_symlink(at("model/w.bin"), at("other/v.bin"));
  const OnnxModel cached = read({{"location", "v.bin"}}, "other/m.onnx");
  EXPECT_EQ(cached.graph.initializers[0].tensor.bytes.view(), "01234567");
}

TEST_F(OnnxReaderFiles, WrongExternalData) {
  write("model/w.bin", "0123456789");
  ASSERT_EQ(mkfifo(at("model/pipe").c_str(), 0600), 0);
  const std::vector<std::pair<Entries, const char*>> cases = {
      {{{"location", "w.bin"}, {"offset", "3"}}, "must have 8 bytes at 3, but found 10 bytes"},
      {{{"location", "w.bin"}, {"offset", "18446744073709551615"}},
       "but found 10 bytes in 'w.bin'"},
      {{{"location", "w.bin"}, {"offset", "-1"}}, "must be a number of bytes, but found '-1'"},
      {{{"location", "w.bin"}, {"offset", "1x"}}, "must be a number of bytes, but found '1x'"},
      {{{"location", "w.bin"}, {"length", "9"}}, "must have 8 bytes, but found length '9'"},
      {{{"location", "none.bin"}}, "'none.bin' cannot be read: No such file"},
      {{{"location", "inner"}}, "'inner' must be a regular file"},
      {{{"location", "pipe"}}, "'pipe' must be a regular file"},
      {{{"location", std::string("w.bin\0x", 7)}}, "must be a path inside the model's folder"}};
  for (const auto& [entries, message] : cases)
    EXPECT_NE(error(entries).find(message), std::string::npos) << error(entries);
  const Message model = model_with(external_message("w", {2}, {{"location", "w.bin"}}));
  EXPECT_NE(error_of(model).find("'w.bin' cannot be read"), std::string::npos);
}

TEST_F(OnnxReaderFiles, FilesThatAreNoModels) {
  write("empty.onnx", "");
  for (const char* name : {"model", "none.onnx", "empty.onnx"})
    EXPECT_THROW(read_onnx_model(at(name).string()), Error) << name;
}

// The writer writes all that the reader reads.
TEST_F(OnnxReaderFiles, WrittenModelsReadTheSame) {
  const std::string path = at("copy.onnx").string();
  for (const Message& message : {model_of_attributes(), model_of_functions(), model_of_types(),
                                 model_with(sparse_message(), 15),
                                 model_with(tensor_message("w", 22, {3}).text(9, "\x21\x03"))}) {
    OnnxModel model = parse(message);
    model.graph.name = "g";
    model.ir_version = 0;  // one of ours
    write_onnx_file(model, path, {.threshold = 1000});
    OnnxModel copy = read_onnx_model(path);
    EXPECT_TRUE(copy.intact);
    EXPECT_EQ(copy.producer, "ortmodule_py");
    copy.producer = model.producer;
    copy.ir_version = model.ir_version;
    EXPECT_EQ(ModelText::of(copy), ModelText::of(model));
  }
}

TEST_F(OnnxReaderFiles, EditsAreNoticed) {
  const std::string path = at("m.onnx").string();
  OnnxModel model = parse(model_of_attributes());
  model.ir_version = 0;  // one of ours
  write_onnx_file(model, path, {.threshold = 1000});
  std::ifstream in(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  EXPECT_TRUE(parse_onnx_model(bytes, "m").intact);
  bytes[bytes.find("then_branch")] = 'T';
  EXPECT_FALSE(parse_onnx_model(bytes, "m").intact);
  EXPECT_FALSE(parse(model_of_attributes()).intact);
}

}  // namespace
}  // namespace ortmodule
