// Max pooling and average pooling, with their gradients. A gradient is gathered: a work item visits
// the windows that contain its input position.

#define IMAGE const int H, const int W, const int P, const int Q
#define WINDOW const int R, const int S, const int stride_h, const int stride_w, \
  const int pad_h, const int pad_w, const int dilation_h, const int dilation_w

__kernel void max_pool(const int count, __global const ELEMENT* in, const int in_at, IMAGE, WINDOW,
                       __global ELEMENT* out, __global long* indices)
{
  const int at = get_global_id(0);
  if (at >= count) return;
  const int q = at % Q, p = at / Q % P;
  in += in_at + (long)(at / (P * Q)) * H * W;
  T largest = -INFINITY;
  int index = -1;
  for (int r = 0; r < R; r++)
    for (int s = 0; s < S; s++) {
      const int h = p * stride_h - pad_h + r * dilation_h;
      const int w = q * stride_w - pad_w + s * dilation_w;
      if (h < 0 || w < 0 || h >= H || w >= W) continue;
      const T value = LOAD(in, h * W + w);
      if (index < 0 || value > largest || value != value) { largest = value; index = h * W + w; }
    }
  STORE(out, at, largest);
  indices[at] = index;
}

__kernel void max_pool_gradient(const int count, __global const ELEMENT* grad, const int grad_at,
                                __global const long* indices, const int indices_at, IMAGE, WINDOW,
                                __global ELEMENT* out)
{
  const int at = get_global_id(0);
  if (at >= count) return;
  const int w = at % W, h = at / W % H;
  const int plane_begin = at / (H * W) * P * Q;
  const int p_first = max(0, (h + pad_h - (R - 1) * dilation_h + stride_h - 1) / stride_h);
  const int q_first = max(0, (w + pad_w - (S - 1) * dilation_w + stride_w - 1) / stride_w);
  T sum = 0;
  for (int p = p_first; p < min(P, (h + pad_h) / stride_h + 1); p++)
    for (int q = q_first; q < min(Q, (w + pad_w) / stride_w + 1); q++) {
      const int position = plane_begin + p * Q + q;
      if (indices[indices_at + position] == h * W + w) sum += LOAD(grad, grad_at + position);
    }
  STORE(out, at, sum);
}

// In one dimension: begin and end of the window of output p, clipped to the image; the first window
// that contains input h, and the end of those windows; length of a window with its padding.
#if ADAPTIVE
#define WINDOW_BEGIN(p, in, out, stride, pad) ((p) * (in) / (out))
#define WINDOW_END(p, in, out, length, stride, pad) (((p) + 1) * (in) + (out) - 1) / (out)
#define FIRST_WINDOW(h, in, out, length, stride, pad) ((h) * (out) / (in))
#define WINDOWS_END(h, in, out, stride, pad) ((((h) + 1) * (out) + (in) - 1) / (in))
#define PADDED_LENGTH(p, in, out, length, stride, pad) 0
#else
#define WINDOW_BEGIN(p, in, out, stride, pad) max(0, (p) * (stride) - (pad))
#define WINDOW_END(p, in, out, length, stride, pad) min((in), (p) * (stride) - (pad) + (length))
#define FIRST_WINDOW(h, in, out, length, stride, pad) \
  max(0, ((h) + (pad) - (length) + (stride)) / (stride))
#define WINDOWS_END(h, in, out, stride, pad) min((out), ((h) + (pad)) / (stride) + 1)
#define PADDED_LENGTH(p, in, out, length, stride, pad) \
  (min((p) * (stride) - (pad) + (length), (in) + (pad)) - ((p) * (stride) - (pad)))
#endif

// divisor of the sum over the window of output (p, q)
inline int divisor(const int p, const int q, IMAGE, WINDOW, const int count_padding,
                   const int divisor_override)
{
  if (divisor_override) return divisor_override;
  if (count_padding)
    return PADDED_LENGTH(p, H, P, R, stride_h, pad_h) * PADDED_LENGTH(q, W, Q, S, stride_w, pad_w);
  return (WINDOW_END(p, H, P, R, stride_h, pad_h) - WINDOW_BEGIN(p, H, P, stride_h, pad_h)) *
         (WINDOW_END(q, W, Q, S, stride_w, pad_w) - WINDOW_BEGIN(q, W, Q, stride_w, pad_w));
}

__kernel void avg_pool(const int count, __global const ELEMENT* in, const int in_at, IMAGE, WINDOW,
                       const int count_padding, const int divisor_override, __global ELEMENT* out)
{
  const int at = get_global_id(0);
  if (at >= count) return;
  const int q = at % Q, p = at / Q % P;
  in += in_at + (long)(at / (P * Q)) * H * W;
  T sum = 0;
  const int h_end = WINDOW_END(p, H, P, R, stride_h, pad_h);
  const int w_end = WINDOW_END(q, W, Q, S, stride_w, pad_w);
  for (int h = WINDOW_BEGIN(p, H, P, stride_h, pad_h); h < h_end; h++)
    for (int w = WINDOW_BEGIN(q, W, Q, stride_w, pad_w); w < w_end; w++)
      sum += LOAD(in, h * W + w);
  const int num = divisor(p, q, H, W, P, Q, R, S, stride_h, stride_w, pad_h, pad_w, dilation_h,
                          dilation_w, count_padding, divisor_override);
  STORE(out, at, sum / num);
}

__kernel void avg_pool_gradient(const int count, __global const ELEMENT* grad, const int grad_at,
                                IMAGE, WINDOW, const int count_padding,
                                const int divisor_override, __global ELEMENT* out)
{
  const int at = get_global_id(0);
  if (at >= count) return;
  const int w = at % W, h = at / W % H;
  grad += grad_at + at / (H * W) * P * Q;
  T sum = 0;
  const int p_end = WINDOWS_END(h, H, P, stride_h, pad_h);
  const int q_end = WINDOWS_END(w, W, Q, stride_w, pad_w);
  for (int p = FIRST_WINDOW(h, H, P, R, stride_h, pad_h); p < p_end; p++)
    for (int q = FIRST_WINDOW(w, W, Q, S, stride_w, pad_w); q < q_end; q++)
      sum += LOAD(grad, p * Q + q) /
             divisor(p, q, H, W, P, Q, R, S, stride_h, stride_w, pad_h, pad_w,
                                       dilation_h, dilation_w, count_padding, divisor_override);
  STORE(out, at, sum);
}
