// What cuDNN's classic calls are told of a convolution. They name the algorithm and its scratch,
// and are the ones that ORTModule's three searches are about.
#pragma once

#include <cudnn.h>

#include "kernels/convolution_problem.h"

namespace ortmodule::cudnn {

/// Throws Error naming the call unless `status` is success.
void check(cudnnStatus_t status, const char* call);

/// cuDNN's name of a float type.
cudnnDataType_t data_type(DType dtype);

/// A library object, from its constructor to its destructor.
template <class T, cudnnStatus_t (*create)(T*), cudnnStatus_t (*destroy)(T)>
class Owned {
 public:
  Owned() { check(create(&object_), "a constructor"); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { destroy(object_); }
  T get() const { return object_; }

 private:
  T object_ = nullptr;
};

using Tensor =
    Owned<cudnnTensorDescriptor_t, cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor>;
using Filter =
    Owned<cudnnFilterDescriptor_t, cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor>;
using Window = Owned<cudnnConvolutionDescriptor_t, cudnnCreateConvolutionDescriptor,
                     cudnnDestroyConvolutionDescriptor>;

/// A convolution with everything described. Sums of 16 bits are made in float.
struct Descriptors {
  Tensor x, y;
  Filter w;
  Window window;

  explicit Descriptors(const ConvolutionProblem& problem);

  /// Which units may be used: with TF32 off, none that round float32.
  void set_math(cudnnMathType_t math) const;
};

/// The math to ask for before an algorithm is known.
cudnnMathType_t wanted_math(DType dtype, bool allow_tf32);

}  // namespace ortmodule::cudnn
