#include "inference/device_feeds.h"

#include "base/error.h"
#include "inference/device_weights.h"
#include "inference/readable_feeds.h"

namespace ortmodule {
namespace {

// Gaps included. No stride is negative, so the first element is the first byte.
int64_t covered_bytes(const HostTensorView& tensor) {
  const Sizes& strides = tensor.strides;
  const Layout layout{tensor.sizes, strides.empty() ? contiguous_strides(tensor.sizes) : strides};
  return extent(layout) * static_cast<int64_t>(size_of(tensor.dtype));
}

// Stands for the address of a feed on a device that has no data: its run is only planned.
const char kSomewhere = 0;

// If a step reads it.
bool is_uploaded(const std::vector<HostTensorView>& tensors,
                 const std::vector<const void*>& on_device, size_t i) {
  return (on_device.empty() || !on_device[i]) && element_count(tensors[i].sizes) > 0;
}

void download(HostTensorView& tensor, int device, HostMemory& memory, std::vector<Buffer>& copies) {
  const int64_t bytes = covered_bytes(tensor);
  Buffer& copy = copies.emplace_back(memory.allocate(bytes));
  if (bytes > 0) run_device(device).download(copy.data(), tensor.data, bytes);
  tensor.data = copy.data();
}

}  // namespace

std::vector<const void*> take_device_feeds(std::vector<HostTensorView>& tensors, int device,
                                           HostMemory& memory, std::vector<Buffer>& copies) {
  std::vector<const void*> on_device;
  for (size_t i = 0; i < tensors.size(); ++i) {
    HostTensorView& tensor = tensors[i];
    if (tensor.device == kOnHost) continue;
    ORTM_CHECK(tensor.device == device, "[run] feeds must be in memory of the host",
               device == kOnHost ? "" : " or of the session's device", ", but found device ",
               tensor.device, ": open the session with CUDAExecutionProvider and that device_id, ",
               "or feed a copy on the host");
    on_device.resize(tensors.size(), nullptr);
    tensor.device = kOnHost;
    if (!may_decide_sizes(tensor)) {
      on_device[i] = tensor.data ? tensor.data : &kSomewhere;
      tensor.data = nullptr;
      continue;
    }
    if (tensor.data) download(tensor, device, memory, copies);
  }
  return on_device;
}

std::vector<HostFeed> feeds_on_host(std::vector<HostFeed> feeds, HostMemory& memory,
                                    std::vector<Buffer>& copies) {
  for (HostFeed& feed : feeds) {
    for (HostTensorView& tensor : feed.tensors) {
      if (tensor.device != kOnHost) download(tensor, tensor.device, memory, copies);
      tensor.device = kOnHost;
    }
  }
  return feeds;
}

std::vector<const void*> device_arguments(const Program& program,
                                          const std::vector<HostTensorView>& tensors,
                                          const std::vector<const void*>& on_device,
                                          RunDevice& device, std::vector<Buffer>& uploads) {
  std::vector<const void*> addresses(on_device);
  addresses.resize(tensors.size(), nullptr);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!program.argument_buffer.at(i) || !is_uploaded(tensors, on_device, i)) continue;
    uploads.push_back(upload(device, tensors[i].data, covered_bytes(tensors[i])));
    addresses[i] = uploads.back().data();
  }
  return addresses;
}

int64_t download_bytes(const std::vector<HostFeed>& feeds) {
  int64_t bytes = 0;
  for (const HostFeed& feed : feeds)
    for (const HostTensorView& tensor : feed.tensors)
      if (tensor.device != kOnHost) bytes += covered_bytes(tensor);
  return bytes;
}

int64_t upload_bytes(const Plan& plan, const std::vector<HostTensorView>& tensors,
                     const std::vector<const void*>& on_device) {
  int64_t bytes = 0;
  for (const PlannedBuffer& buffer : plan.buffers)
    if (buffer.kind == BufferKind::Argument && buffer.index < tensors.size() &&
        is_uploaded(tensors, on_device, buffer.index))
      bytes += covered_bytes(tensors[buffer.index]);
  return bytes;
}

}  // namespace ortmodule
