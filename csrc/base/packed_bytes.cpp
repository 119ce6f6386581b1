#include "base/packed_bytes.h"

#include <zlib.h>

#include <new>

#include "base/error.h"
#include "base/page_region.h"

namespace ortmodule {
namespace {

// Never destroyed: sessions of static variables may go after it.
PageRegion& packed_region() {
  static auto& region = *new PageRegion;
  return region;
}

const Bytef* bytes_of(std::string_view text) { return reinterpret_cast<const Bytef*>(text.data()); }

// For zlib. What it frees goes with the region.
voidpf allocate(voidpf pages, uInt items, uInt bytes) noexcept {
  try {
    return static_cast<PageRegion*>(pages)->allocate(size_t{items} * bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void leave(voidpf, voidpf) noexcept {}

}  // namespace

PackedBytes::PackedBytes() : packed_(&packed_region()) {}

PackedBytes::PackedBytes(std::string_view bytes)
    : unpacked_bytes_(bytes.size()), packed_(&packed_region()) {
  PageRegion pages;
  z_stream stream = {};
  stream.zalloc = &allocate;
  stream.zfree = &leave;
  stream.opaque = &pages;
  if (deflateInit(&stream, Z_BEST_SPEED) != Z_OK) throw std::bad_alloc();
  std::pmr::vector<unsigned char> packed(deflateBound(&stream, bytes.size()), &pages);
  stream.next_in = const_cast<Bytef*>(bytes_of(bytes));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = packed.data();
  stream.avail_out = static_cast<uInt>(packed.size());
  const int status = deflate(&stream, Z_FINISH);
  ORTM_ASSERT(status == Z_STREAM_END, "bytes to pack must have room, but found status ", status);
  packed_.assign(packed.begin(), packed.begin() + static_cast<std::ptrdiff_t>(stream.total_out));
}

std::string PackedBytes::unpacked() const {
  std::string bytes(unpacked_bytes_, '\0');
  if (packed_.empty()) return bytes;
  uLongf size = bytes.size();
  const int status =
      uncompress(reinterpret_cast<Bytef*>(bytes.data()), &size, packed_.data(), packed_.size());
  if (status == Z_MEM_ERROR) throw std::bad_alloc();
  ORTM_ASSERT(status == Z_OK && size == bytes.size(), "packed bytes were written to");
  return bytes;
}

}  // namespace ortmodule
