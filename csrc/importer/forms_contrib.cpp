// Written by tools/operator_forms.py, of onnxruntime 1.32. Sorted by domain, operator, operator
// set.
#include "importer/operator_forms.h"

namespace ortmodule {
namespace {

constexpr OperatorForm kContribForms[] = {
    {"com.microsoft", "Attention", 1, "ssooooo", "so",
     "do_rotary:i mask_filter_value:f num_heads!:i past_present_share_buffer:i "
     "qkv_hidden_sizes:I rotary_embedding_dim:i scale:f unidirectional:i "},
    {"com.microsoft", "AttnLSTM", 1, "sssooooooooooo", "ooo",
     "activation_alpha:F activation_beta:F activations:S clip:f direction:s "
     "hidden_size:i input_forget:i "},
    {"com.microsoft", "BeamSearch", 1, "ssossooooooo", "soo",
     "decoder!:g decoder_start_token_id:i early_stopping:i encoder:g eos_token_id!:i "
     "init_decoder:g model_type:i no_repeat_ngram_size:i pad_token_id!:i vocab_size:i "},
    {"com.microsoft", "BiasAdd", 1, "sss", "s", ""},
    {"com.microsoft", "BiasDropout", 1, "ssooo", "so", "seed:i "},
    {"com.microsoft", "BiasGelu", 1, "ss", "s", ""},
    {"com.microsoft", "BiasSoftmax", 1, "ss", "s", "axis:i is_inner_broadcast!:i "},
    {"com.microsoft", "BiasSplitGelu", 1, "ss", "s", ""},
    {"com.microsoft", "BifurcationDetector", 1, "ssso", "ss", "max_ngram_size:i min_ngram_size:i "},
    {"com.microsoft", "BitmaskBiasDropout", 1, "ssooo", "so", "seed:i "},
    {"com.microsoft", "BitmaskDropout", 1, "soo", "so", "seed:i "},
    {"com.microsoft", "BranchwiseRMSNorm", 1, "so", "s", "epsilon:f num_branches:i "},
    {"com.microsoft", "CDist", 1, "ss", "s", "metric:s "},
    {"com.microsoft", "CausalConvWithState", 1, "ssoo", "sso",
     "activation:s channels_last:i dilation:i input_channel_offset:i input_channels:i "
     "ndim:i state_channels_last:i state_length:i state_update_capacity:i "
     "state_window:i "},
    {"com.microsoft", "ComplexMul", 1, "ss", "s", ""},
    {"com.microsoft", "ComplexMulConj", 1, "ss", "s", ""},
    {"com.microsoft", "ConvStateReplay", 1, "ssss", "s", ""},
    {"com.microsoft", "ConvTransposeWithDynamicPads", 1, "ssoo", "s",
     "auto_pad:s dilations:I group:i kernel_shape:I output_padding:I strides:I "},
    {"com.microsoft", "CropAndResize", 1, "ssss", "s", "extrapolation_value:f mode:s "},
    {"com.microsoft", "DecoderAttention", 1, "sssssooossss", "soo",
     "mask_filter_value:f num_heads!:i "},
    {"com.microsoft", "DecoderMaskedMultiHeadAttention", 1, "soooooooooo", "sooo",
     "mask_filter_value:f num_heads!:i output_qk:i past_present_share_buffer:i scale:f "},
    {"com.microsoft", "DecoderMaskedSelfAttention", 1, "sssososoo", "ss",
     "do_rotary:i mask_filter_value:f num_heads!:i past_present_share_buffer:i scale:f "},
    {"com.microsoft", "DequantizeBFP", 1, "sss", "s", "bfp_type!:i block_dim:i dtype:i "},
    {"com.microsoft", "DequantizeLinear", 1, "sso", "s", "axis:i "},
    {"com.microsoft", "DequantizeWithOrder", 1, "ss", "s", "order_input!:i order_output!:i to!:i "},
    {"com.microsoft", "DynamicQuantizeLSTM", 1, "sssooooossss", "ooo",
     "activation_alpha:F activation_beta:F activations:S clip:f direction:s "
     "hidden_size:i input_forget:i "},
    {"com.microsoft", "DynamicQuantizeMatMul", 1, "sssoo", "s", ""},
    {"com.microsoft", "DynamicSparseAttention", 1, "soooooossssooooooooo", "sooo",
     "attention_mode:s auxiliary_kv_shared:i do_rotary:i is_causal:i kv_num_heads!:i "
     "local_window_size:i num_heads!:i output_bf16:i qk_norm_epsilon:f "
     "rotary_interleaved:i rotary_offset:i scale:f selected_kv_source:s "
     "smooth_softmax:i "},
    {"com.microsoft", "DynamicTimeWarping", 1, "s", "s", ""},
    {"com.microsoft", "EPContext", 1, "w", "v",
     "embed_mode:i ep_cache_context:s ep_sdk_version:s hardware_architecture:s "
     "main_context:i max_size:i notes:s onnx_model_filename:s partition_name:s "
     "source:s "},
    {"com.microsoft", "EmbedLayerNormalization", 1, "sossossoo", "soo",
     "epsilon:f mask_index_type:i "},
    {"com.microsoft", "EngramGate", 1, "ssssso", "so", "epsilon:f "},
    {"com.microsoft", "ExpandDims", 1, "ss", "s", ""},
    {"com.microsoft", "FastGelu", 1, "so", "s", ""},
    {"com.microsoft", "FusedConv", 1, "ssoo", "s",
     "activation:s activation_params:F auto_pad:s dilations:I group:i kernel_shape:I "
     "pads:I strides:I "},
    {"com.microsoft", "FusedGemm", 1, "sso", "s",
     "activation:s activation_alpha:f activation_beta:f activation_gamma:f alpha:f "
     "beta:f transA:i transB:i "},
    {"com.microsoft", "FusedMatMul", 1, "ss", "s",
     "alpha:f transA:i transB:i transBatchA:i transBatchB:i "},
    {"com.microsoft", "FusedMatMulActivation", 1, "ss", "s",
     "activation!:s activation_alpha:f activation_axis:i activation_beta:f "
     "activation_gamma:f alpha:f transA:i transB:i transBatchA:i transBatchB:i "},
    {"com.microsoft", "GatedAdd", 1, "ssso", "s", ""},
    {"com.microsoft", "GatedDeltaNet", 1, "soooooooooo", "soo",
     "beta_activation:s chunk_size:i gate_activation:s gate_lower_bound:f qk_l2_norm:i "
     "scale:f state_update_capacity:i update_rule:s "},
    {"com.microsoft", "GatedDeltaNetStateReplay", 1, "ssss", "s", ""},
    {"com.microsoft", "GatedRMSNorm", 1, "sss", "s", "activation:s epsilon:f "},
    {"com.microsoft", "GatedRelativePositionBias", 1, "sssssso", "s", "num_heads!:i "},
    {"com.microsoft", "GatherBlockQuantized", 1, "ssso", "s",
     "bits:i block_size:i gather_axis:i quantize_axis:i "},
    {"com.microsoft", "GatherND", 1, "ss", "s", ""},
    {"com.microsoft", "GatherPacked", 1, "ss", "s", "K!:i output_dtype:i packed_type!:i "},
    {"com.microsoft", "Gelu", 1, "s", "s", ""},
    {"com.microsoft", "GemmFastGelu", 1, "sso", "s", ""},
    {"com.microsoft", "GemmFloat8", 1, "ssoooo", "s",
     "activation:s alpha:f beta:f dtype:i transA:i transB:i "},
    {"com.microsoft", "GemmaRotaryEmbedding", 1, "sssss", "ss", ""},
    {"com.microsoft", "GreedySearch", 1, "ssooooo", "s",
     "decoder!:g decoder_start_token_id:i encoder:g eos_token_id!:i init_decoder:g "
     "model_type:i no_repeat_ngram_size:i pad_token_id!:i vocab_size:i "},
    {"com.microsoft", "GridSample", 1, "ss", "s", "align_corners:i mode:s padding_mode:s "},
    {"com.microsoft", "GroupNorm", 1, "sss", "s",
     "activation!:i channels_last:i epsilon:f groups!:i "},
    {"com.microsoft", "GroupQueryAttention", 1, "soooossoooooooooo", "sooo",
     "causal:i do_rotary:i k_norm_epsilon:f k_quant_type:s kv_cache_bit_width:i "
     "kv_num_heads!:i local_window_size:i num_heads!:i q_norm_epsilon:f "
     "qk_norm_epsilon:f qk_output:i rotary_interleaved:i scale:f "
     "sliding_window_cache:i smooth_softmax:i softcap:f v_quant_type:s "},
    {"com.microsoft", "HyperConnectionLowRankMix", 1, "sssssoo", "sso",
     "epsilon:f gate_div:f gate_mul:f num_branches!:i reduction_scale:f silu_alpha:f "},
    {"com.microsoft", "HyperConnectionPostMix", 1, "ssso", "s", "num_branches:i "},
    {"com.microsoft", "HyperConnectionPreMix", 1, "ss", "s", "num_branches:i reduction_scale:f "},
    {"com.microsoft", "Inverse", 1, "s", "s", ""},
    {"com.microsoft", "Irfft", 1, "s", "s", "normalized:i onesided:i signal_ndim!:i "},
    {"com.microsoft", "IsAllFinite", 1, "v", "s", "isinf_only:i isnan_only:i "},
    {"com.microsoft", "LinearAttention", 1, "sssooo", "ss",
     "chunk_size:i kv_num_heads!:i q_num_heads!:i scale:f state_window:i update_rule:s "},
    {"com.microsoft", "LinearAttentionGate", 1, "ssso", "so", ""},
    {"com.microsoft", "LongformerAttention", 1, "sssssss", "s", "num_heads!:i window!:i "},
    {"com.microsoft", "MRotaryEmbedding", 1, "ssss", "s",
     "interleaved:i is_packed_batching:i mrope_layout:i mrope_section!:I num_heads:i "
     "rotary_embedding_dim:i scale:f "},
    {"com.microsoft", "Mamba2Verify", 1, "ssssssssss", "sssoo",
     "d_state:i epsilon:f head_dim:i heads!:i n_groups!:i time_step_min:f "},
    {"com.microsoft", "MatMulBlockQuantizedFp4Weight", 1, "ssssoo", "s", "block_size:i "},
    {"com.microsoft", "MatMulBlockQuantizedFp8Weight", 1, "sssoo", "s", "block_size:i "},
    {"com.microsoft", "MatMulBnb4", 1, "sss", "s",
     "K!:i N!:i block_size!:i quant_type!:i training_mode:i transB:i "},
    {"com.microsoft", "MatMulFpQ4", 1, "sss", "s", "blk_quant_type:i "},
    {"com.microsoft", "MatMulInteger16", 1, "ss", "s", ""},
    {"com.microsoft", "MatMulIntegerToFloat", 1, "ssssooo", "s", ""},
    {"com.microsoft", "MatMulNBits", 1, "sssooo", "s",
     "K!:i N!:i accuracy_level:i bits:i block_size!:i weight_prepacked:i "},
    {"com.microsoft", "MatMulNBitsMlp", 1, "soossosso", "so",
     "K!:i N!:i accuracy_level:i activation!:s bits:i block_size!:i epsilon:f "},
    {"com.microsoft", "MatMulNBitsQLoRA", 1, "sssssss", "s",
     "K!:i N!:i accuracy_level:i bits:i block_size:i lora_bits:i lora_block_size:i "},
    {"com.microsoft", "MatMulNBitsQkv", 1, "sosssossosso", "ssso",
     "K!:i Nkv!:i Nq!:i accuracy_level:i bits:i block_size!:i epsilon:f "},
    {"com.microsoft", "MatMulPacked", 1, "sso", "s", "K!:i N!:i activation_type:s packed_type!:i "},
    {"com.microsoft", "MaxpoolWithMask", 1, "ss", "s",
     "auto_pad:s kernel_shape:I pads:I storage_order:i strides:I "},
    {"com.microsoft", "MoE", 1, "sssosooo", "s",
     "activation_alpha:f activation_beta:f activation_type:s k:i "
     "normalize_routing_weights:i swiglu_fusion:i swiglu_limit:f "
     "swiglu_limit_after_activation:i use_sparse_mixer:i "},
    {"com.microsoft", "MoEGroupRouter", 1, "sso", "ooo",
     "group_topk:i n_group:i router_sentinel:f top_k!:i topk_group:i "},
    {"com.microsoft", "MoEPacked", 1, "sssoso", "s",
     "activation_type:s down_type!:i gate_type!:i k:i normalize_routing_weights:i "
     "routed_scaling_factor:f routing_epsilon:f up_type:i "},
    {"com.microsoft", "MulInteger", 1, "soso", "s", ""},
    {"com.microsoft", "MultiHeadAttention", 1, "sooooooooo", "sooo",
     "mask_filter_value:f num_heads!:i scale:f unidirectional:i "},
    {"com.microsoft", "MurmurHash3", 1, "s", "s", "positive:i seed:i "},
    {"com.microsoft", "NGramHashMapping", 1, "sssoooo", "so",
     "max_ngram_size!:i n_head_per_ngram!:i pad_id!:i reset_on_eos:i "},
    {"com.microsoft", "NGramRepeatBlock", 1, "ss", "s", "ngram_size!:i "},
    {"com.microsoft", "NhwcConv", 1, "sso", "s",
     "auto_pad:s dilations:I group:i kernel_shape:I pads:I strides:I "},
    {"com.microsoft", "NhwcFusedConv", 1, "ssoo", "s",
     "activation:s activation_params:F auto_pad:s dilations:I group:i kernel_shape:I "
     "pads:I strides:I "},
    {"com.microsoft", "NhwcMaxPool", 1, "s", "s",
     "auto_pad:s ceil_mode:i dilations:I kernel_shape!:I pads:I strides:I "},
    {"com.microsoft", "PackedAttention", 1, "ssssso", "s",
     "num_heads!:i qkv_hidden_sizes:I scale:f "},
    {"com.microsoft", "PackedMultiHeadAttention", 1, "sooosso", "s",
     "mask_filter_value:f num_heads!:i scale:f "},
    {"com.microsoft", "PackedSparseAttentionIndexer", 1, "sossssssoooossosoooooo", "ssssosooo",
     "compress_ratio!:i epsilon:f head_weight_scale:f index_topk:i "
     "indexshare_state_policy:s max_output_entries:i policy_mode!:s scale:f "
     "state_capacity!:i state_update_capacity:i token_budget:i "},
    {"com.microsoft", "PackedSparseAttentionIndexerMerge", 1, "sssoooo", "sss",
     "max_output_entries!:i policy_mode!:s "},
    {"com.microsoft", "Pad", 1, "sso", "s", "mode:s "},
    {"com.microsoft", "PagedAttention", 1, "soososssooooooooo", "soo",
     "do_rotary:i is_causal:i k_cache_dtype:s k_quant_type:s kv_cache_layout:s "
     "kv_num_heads!:i local_window_size:i num_heads!:i qk_norm_epsilon:f "
     "rotary_interleaved:i rotary_offset:i scale:f softcap:f v_cache_dtype:s "
     "v_head_size:i v_quant_type:s "},
    {"com.microsoft", "QAttention", 1, "sssssoooo", "so",
     "do_rotary:i mask_filter_value:f num_heads!:i past_present_share_buffer:i scale:f "
     "unidirectional:i "},
    {"com.microsoft", "QEmbedLayerNormalization", 1, "sossossossossssoss", "ss", "epsilon:f "},
    {"com.microsoft", "QGemm", 1, "ssssssooo", "s", "alpha:f transA:i transB:i "},
    {"com.microsoft", "QLinearAdd", 1, "ssossoso", "s", ""},
    {"com.microsoft", "QLinearAveragePool", 1, "ssoso", "s",
     "auto_pad:s ceil_mode:i channels_last:i count_include_pad:i kernel_shape!:I "
     "pads:I strides:I "},
    {"com.microsoft", "QLinearConcat", 1, "ssv", "s", "axis!:i "},
    {"com.microsoft", "QLinearConv", 1, "sssssssso", "s",
     "auto_pad:s channels_last:i dilations:I group:i kernel_shape:I pads:I strides:I "},
    {"com.microsoft", "QLinearGlobalAveragePool", 1, "sssss", "s", "channels_last:i "},
    {"com.microsoft", "QLinearLeakyRelu", 1, "ssoso", "s", "alpha:f "},
    {"com.microsoft", "QLinearMul", 1, "ssossoso", "s", ""},
    {"com.microsoft", "QLinearReduceMean", 1, "ssoso", "s", "axes!:I keepdims!:i "},
    {"com.microsoft", "QLinearSigmoid", 1, "ssoso", "s", ""},
    {"com.microsoft", "QLinearSoftmax", 1, "ssoss", "s", "axis:i opset!:i "},
    {"com.microsoft", "QLinearWhere", 1, "sssssssss", "s", ""},
    {"com.microsoft", "QMoE", 1, "sssoosooooooooooooooo", "s",
     "accuracy_level:i activation_alpha:f activation_beta:f activation_type:s "
     "block_size:i expert_weight_bits:i fc1_expert_weight_bits:i "
     "fc2_expert_weight_bits:i fc3_expert_weight_bits:i k:i "
     "normalize_routing_weights:i quant_type:s swiglu_fusion:i swiglu_limit:f "
     "swiglu_limit_after_activation:i use_sparse_mixer:i weights_prepacked:i "},
    {"com.microsoft", "QOrderedAttention", 1, "ssssssssssssssoosooo", "s",
     "num_heads!:i order_input!:i order_output!:i order_weight!:i qkv_hidden_sizes:I "
     "unidirectional:i "},
    {"com.microsoft", "QOrderedGelu", 1, "sss", "s", "order_X:i order_Y:i "},
    {"com.microsoft", "QOrderedLayerNormalization", 1, "sssos", "s",
     "axis:i epsilon:f order_X:i order_Y:i "},
    {"com.microsoft", "QOrderedLongformerAttention", 1, "ssssssssssssss", "s",
     "num_heads!:i order_global_weight!:i order_input!:i order_output!:i "
     "order_weight!:i window!:i "},
    {"com.microsoft", "QOrderedMatMul", 1, "sssssooo", "s", "order_A!:i order_B!:i order_Y!:i "},
    {"com.microsoft", "QuantizeBFP", 1, "s", "sss", "bfp_type!:i block_dim:i "},
    {"com.microsoft", "QuantizeLinear", 1, "sso", "s", "axis:i "},
    {"com.microsoft", "QuantizeWithOrder", 1, "ss", "s", "order_input!:i order_output!:i "},
    {"com.microsoft", "QuickGelu", 1, "s", "s", "alpha:f "},
    {"com.microsoft", "RMSNormRotary", 1, "ssssso", "so",
     "epsilon:f flatten_batch:i input_start:i input_width:i output_fp16:i "
     "rotary_embedding_dim!:i use_fp32_arithmetic:i "},
    {"com.microsoft", "Range", 1, "sso", "s", ""},
    {"com.microsoft", "ReduceSumInteger", 1, "s", "s", "axes!:I keepdims!:i "},
    {"com.microsoft", "RelativePositionBias", 1, "sss", "s", "is_bidirectional:i max_distance!:i "},
    {"com.microsoft", "RemovePadding", 1, "ss", "ssss", ""},
    {"com.microsoft", "RestorePadding", 1, "ss", "s", ""},
    {"com.microsoft", "Rfft", 1, "s", "s", "normalized:i onesided:i signal_ndim:i "},
    {"com.microsoft", "RotaryEmbedding", 1, "ssss", "s",
     "interleaved:i is_packed_batching:i num_heads:i rotary_embedding_dim:i scale:f "},
    {"com.microsoft", "RouterGateUpProj", 1, "ss", "ss",
     "activation:s activation_alpha:f activation_beta:f limit:f router_size!:i "},
    {"com.microsoft", "SampleOp", 1, "s", "s", ""},
    {"com.microsoft", "Sampling", 1, "ssooooooo", "so",
     "custom:i decoder!:g decoder_start_token_id:i encoder:g eos_token_id!:i "
     "filter_value:f init_decoder:g min_tokens_to_keep:i model_type:i "
     "no_repeat_ngram_size:i pad_token_id!:i presence_penalty:f temperature:f top_p:f "
     "vocab_size:i "},
    {"com.microsoft", "ScaledSiLU", 1, "so", "s", "alpha:f "},
    {"com.microsoft", "SkipGroupNorm", 1, "sssso", "so",
     "activation!:i channels_last:i epsilon:f groups!:i "},
    {"com.microsoft", "SkipLayerNormalization", 1, "sssoo", "sooo", "epsilon:f "},
    {"com.microsoft", "SkipSimplifiedLayerNormalization", 1, "ssso", "sooo", "epsilon:f "},
    {"com.microsoft", "Snpe", 1, "v", "v", "DLC!:s notes:s snpe_version:s target_device:s "},
    {"com.microsoft", "SparseAttention", 1, "soossssssoo", "sss",
     "do_rotary:i kv_num_heads!:i num_heads!:i rotary_interleaved:i scale:f "
     "sparse_block_size!:i "},
    {"com.microsoft", "SparseAttentionIndexer", 1, "sossssosoooooo", "sso",
     "compress_ratio!:i epsilon:f head_weight_scale:f index_topk:i policy_mode!:s "
     "scale:f token_budget:i "},
    {"com.microsoft", "SparsePagedAttention", 1, "soosssssossooooooooooo", "soo",
     "attention_mode:s auxiliary_cache_layout:s auxiliary_kv_shared:i do_rotary:i "
     "is_causal:i k_quant_type:s kv_num_heads!:i local_window_size:i num_heads!:i "
     "qk_norm_epsilon:f rotary_interleaved:i rotary_offset:i scale:f "
     "selected_kv_source:s softcap:f v_quant_type:s "},
    {"com.microsoft", "SparseToDenseMatMul", 1, "ss", "s", "alpha:f transA:i transB:i "},
    {"com.microsoft", "SpeculativePrefixCommit", 1, "sssssss", "sss", "head_rows:i "},
    {"com.microsoft", "SwiGLU", 1, "so", "s",
     "activation_alpha:f activation_beta:f limit:f round_activation:i "},
    {"com.microsoft", "Tokenizer", 1, "s", "s",
     "mark!:i mincharnum!:i pad_value!:s separators:S tokenexp:s "},
    {"com.microsoft", "TorchEmbedding", 1, "ssoo", "s", ""},
    {"com.microsoft", "TransposeMatMul", 1, "ss", "s", "alpha:f transA:i transB:i "},
    {"com.microsoft", "Trilu", 1, "so", "s", "upper:i "},
    {"com.microsoft", "UnfoldTensor", 1, "s", "s", "dim:i size!:i step:i "},
    {"com.microsoft", "Unique", 1, "s", "sss", ""},
    {"com.microsoft", "VarlenCausalConvWithState", 1, "sssosooo", "sso",
     "activation:s delta_offset:i dilation:i group_size:i state_update_capacity:i "},
    {"com.microsoft", "VarlenNGramHashMapping", 1, "ssssoooooo", "sooo",
     "max_ngram_size!:i n_head_per_ngram!:i pad_id!:i reset_on_eos:i "
     "state_update_capacity:i "},
    {"com.microsoft", "WhisperBeamSearch", 1, "ssossoooooooooo", "soooo",
     "beginning_timestamp_token_id:i decoder!:g decoder_output_cross_qk:i "
     "decoder_start_token_id:i early_stopping:i encoder:g eos_token_id!:i "
     "init_decoder:g model_type:i no_repeat_ngram_size:i no_speech_token_id:i "
     "no_timestamps_token_id:i pad_token_id!:i start_of_lm_token_id:i "
     "transcribe_token_id:i translate_token_id:i vocab_size:i "},
    {"com.microsoft", "WordConvEmbedding", 1, "ssss", "s",
     "char_embedding_size:i conv_window_size:i embedding_size:i "},
    {"com.microsoft.nchwc", "AveragePool", 1, "s", "s",
     "auto_pad:s ceil_mode:i count_include_pad:i dilations:I kernel_shape!:I pads:I "
     "strides:I "},
    {"com.microsoft.nchwc", "Conv", 1, "ssoo", "s",
     "activation:s activation_params:F auto_pad:s dilations:I group:i kernel_shape:I "
     "pads:I strides:I "},
    {"com.microsoft.nchwc", "GlobalAveragePool", 1, "s", "s", ""},
    {"com.microsoft.nchwc", "GlobalMaxPool", 1, "s", "s", ""},
    {"com.microsoft.nchwc", "MaxPool", 1, "s", "s",
     "auto_pad:s ceil_mode:i dilations:I kernel_shape!:I pads:I storage_order:i "
     "strides:I "},
    {"com.microsoft.nchwc", "ReorderInput", 1, "s", "s", "channels_last:i "},
    {"com.microsoft.nchwc", "ReorderOutput", 1, "s", "s", "channels:i channels_last:i "},
    {"com.microsoft.nchwc", "Upsample", 1, "s", "s",
     "coordinate_transformation_mode:s mode:s scales:I "},
};

}  // namespace

std::span<const OperatorForm> contrib_forms() { return kContribForms; }

}  // namespace ortmodule
