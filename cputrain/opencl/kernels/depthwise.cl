// Convolutions in which each channel is on its own. The window's size, steps and gaps are constants.

#define FORM const int C, const int H, const int W, const int K, const int P, const int Q, \
  const int EACH, const int PAD_H, const int PAD_W

#define INSIDE(h, w) ((uint)(h) < (uint)H && (uint)(w) < (uint)W)

// of each place that is written
__kernel void output(const int count, FORM, __global const T* in, const int in_at,
                     __global const T* weight, const int weight_at,
                     __global const T* bias, const int bias_at, __global T* out, const int out_at)
{
  const int at = get_global_id(0);
  if (at >= count) return;
  const int q = at % Q, p = at / Q % P, plane = at / (P * Q), k = plane % K;
  const int c = k / EACH, image = plane / K;
  in += in_at + (image * C + c) * H * W;
  weight += weight_at + k * R * S;
  T sum = HAS_BIAS ? bias[bias_at + k] : (T)0;
  #pragma unroll
  for (int r = 0; r < R; r++)
    #pragma unroll
    for (int s = 0; s < S; s++) {
      const int h = p * STEP_H - PAD_H + r * GAP_H, w = q * STEP_W - PAD_W + s * GAP_W;
      if (INSIDE(h, w)) sum += in[h * W + w] * weight[r * S + s];
    }
  out[out_at + at] = sum;
}

// of each place that was read: what was written of it
__kernel void input(const int count, FORM, __global const T* grad, const int grad_at,
                    __global const T* weight, const int weight_at,
                    __global const T* bias, const int bias_at, __global T* out, const int out_at)
{
  const int at = get_global_id(0);
  if (at >= count) return;
  const int w = at % W, h = at / W % H, plane = at / (H * W), c = plane % C, image = plane / C;
  T sum = HAS_BIAS ? bias[bias_at + c] : (T)0;
  for (int each = 0; each < EACH; each++) {
    const int k = c * EACH + each;
    __global const T* from = grad + grad_at + (image * K + k) * P * Q;
    __global const T* by = weight + weight_at + k * R * S;
    #pragma unroll
    for (int r = 0; r < R; r++)
      #pragma unroll
      for (int s = 0; s < S; s++) {
        const int p = h + PAD_H - r * GAP_H, q = w + PAD_W - s * GAP_W;
        if (p >= 0 && q >= 0 && p % STEP_H == 0 && q % STEP_W == 0 && p / STEP_H < P &&
            q / STEP_W < Q)
          sum += from[p / STEP_H * Q + q / STEP_W] * by[r * S + s];
      }
  }
  out[out_at + at] = sum;
}

// a group for each channel that was written and each part of its places; all its items' sums are
// added up in one order
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void weight(const int parts, const int images, FORM, __global const T* grad, const int grad_at,
            __global const T* in, const int in_at, __global T* out)
{
  __local T sums[ITEMS];
  const int item = get_local_id(0), part = get_group_id(0), k = get_group_id(1), c = k / EACH;
  T own[R][S];
  for (int r = 0; r < R; r++)
    for (int s = 0; s < S; s++) own[r][s] = 0;
  for (int at = part * ITEMS + item; at < images * P * Q; at += parts * ITEMS) {
    const int q = at % Q, p = at / Q % P, image = at / (P * Q);
    const T value = grad[grad_at + (image * K + k) * P * Q + p * Q + q];
    __global const T* from = in + in_at + (image * C + c) * H * W;
    #pragma unroll
    for (int r = 0; r < R; r++)
      #pragma unroll
      for (int s = 0; s < S; s++) {
        const int h = p * STEP_H - PAD_H + r * GAP_H, w = q * STEP_W - PAD_W + s * GAP_W;
        if (INSIDE(h, w)) own[r][s] += value * from[h * W + w];
      }
  }
  #pragma unroll
  for (int r = 0; r < R; r++)
    #pragma unroll
    for (int s = 0; s < S; s++) {
      sums[item] = own[r][s];
      barrier(CLK_LOCAL_MEM_FENCE);
      for (int half_ = ITEMS / 2; half_ > 0; half_ /= 2) {
        if (item < half_) sums[item] += sums[item + half_];
        barrier(CLK_LOCAL_MEM_FENCE);
      }
      if (item == 0) out[(part * K + k) * R * S + r * S + s] = sums[0];
      barrier(CLK_LOCAL_MEM_FENCE);
    }
}
