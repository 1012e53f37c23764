// Depthwise convolutions: each input channel is a group. Kernel size, stride and dilation are
// constants.

#define SHAPE const int C, const int H, const int W, const int K, const int P, const int Q, \
  const int GROUP_OUT, const int PAD_H, const int PAD_W

#define INSIDE(h, w) ((uint)(h) < (uint)H && (uint)(w) < (uint)W)

// convolution: one work item per output element
__kernel void output(const int count, SHAPE, __global const ELEMENT* in, const int in_at,
                     __global const ELEMENT* weight, const int weight_at,
                     __global const ELEMENT* bias, const int bias_at,
                     __global ELEMENT* out, const int out_at)
{
  const int at = get_global_id(0);
  if (at >= count) return;
  const int q = at % Q, p = at / Q % P, plane = at / (P * Q), k = plane % K;
  const int c = k / GROUP_OUT, image = plane / K;
  in += in_at + (image * C + c) * H * W;
  weight += weight_at + k * R * S;
  T sum = HAS_BIAS ? LOAD(bias, bias_at + k) : (T)0;
  #pragma unroll
  for (int r = 0; r < R; r++)
    #pragma unroll
    for (int s = 0; s < S; s++) {
      const int h = p * STRIDE_H - PAD_H + r * DILATION_H;
      const int w = q * STRIDE_W - PAD_W + s * DILATION_W;
      if (INSIDE(h, w)) sum += LOAD(in, h * W + w) * LOAD(weight, r * S + s);
    }
  STORE(out, out_at + at, sum);
}

// gradient of the input, gathered: one work item per input element
__kernel void input(const int count, SHAPE, __global const ELEMENT* grad, const int grad_at,
                    __global const ELEMENT* weight, const int weight_at,
                    __global const ELEMENT* bias, const int bias_at,
                    __global ELEMENT* out, const int out_at)
{
  const int at = get_global_id(0);
  if (at >= count) return;
  const int w = at % W, h = at / W % H, plane = at / (H * W), c = plane % C, image = plane / C;
  T sum = HAS_BIAS ? LOAD(bias, bias_at + c) : (T)0;
  for (int index = 0; index < GROUP_OUT; index++) {
    const int k = c * GROUP_OUT + index;
    __global const ELEMENT* source = grad + grad_at + (image * K + k) * P * Q;
    __global const ELEMENT* kernel_weight = weight + weight_at + k * R * S;
    #pragma unroll
    for (int r = 0; r < R; r++)
      #pragma unroll
      for (int s = 0; s < S; s++) {
        const int p = h + PAD_H - r * DILATION_H, q = w + PAD_W - s * DILATION_W;
        if (p >= 0 && q >= 0 && p % STRIDE_H == 0 && q % STRIDE_W == 0 && p / STRIDE_H < P &&
            q / STRIDE_W < Q)
          sum += LOAD(source, p / STRIDE_H * Q + q / STRIDE_W) *
                 LOAD(kernel_weight, r * S + s);
      }
  }
  STORE(out, out_at + at, sum);
}

// gradient of the weight: a work-group for each output channel and each part of its positions; the
// sums of its items are reduced in a fixed order
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void weight(const int num_parts, const int images, SHAPE,
            __global const ELEMENT* grad, const int grad_at,
            __global const ELEMENT* in, const int in_at, __global RESULT* out)
{
  __local T sums[ITEMS];
  const int item = get_local_id(0), part = get_group_id(0), k = get_group_id(1), c = k / GROUP_OUT;
  T weight_sums[R][S];
  for (int r = 0; r < R; r++)
    for (int s = 0; s < S; s++) weight_sums[r][s] = 0;
  for (int at = part * ITEMS + item; at < images * P * Q; at += num_parts * ITEMS) {
    const int q = at % Q, p = at / Q % P, image = at / (P * Q);
    const T value = LOAD(grad, grad_at + (image * K + k) * P * Q + p * Q + q);
    __global const ELEMENT* source = in + in_at + (image * C + c) * H * W;
    #pragma unroll
    for (int r = 0; r < R; r++)
      #pragma unroll
      for (int s = 0; s < S; s++) {
        const int h = p * STRIDE_H - PAD_H + r * DILATION_H;
        const int w = q * STRIDE_W - PAD_W + s * DILATION_W;
        if (INSIDE(h, w)) weight_sums[r][s] += value * LOAD(source, h * W + w);
      }
  }
  #pragma unroll
  for (int r = 0; r < R; r++)
    #pragma unroll
    for (int s = 0; s < S; s++) {
      sums[item] = weight_sums[r][s];
      barrier(CLK_LOCAL_MEM_FENCE);
      for (int half_ = ITEMS / 2; half_ > 0; half_ /= 2) {
        if (item < half_) sums[item] += sums[item + half_];
        barrier(CLK_LOCAL_MEM_FENCE);
      }
      if (item == 0) STORE_RESULT(out, (part * K + k) * R * S + r * S + s, sums[0]);
      barrier(CLK_LOCAL_MEM_FENCE);
    }
}
