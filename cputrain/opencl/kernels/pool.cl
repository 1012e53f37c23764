// The largest of each window, and means of windows, with their gradients. A gradient is gathered: an
// item looks at the windows that its place is in.

#define IMAGE const int H, const int W, const int P, const int Q
#define WINDOW const int R, const int S, const int step_h, const int step_w, \
  const int pad_h, const int pad_w, const int gap_h, const int gap_w

__kernel void largest(const int count, __global const T* in, const int in_at, IMAGE, WINDOW,
                      __global T* out, __global long* indices)
{
  const int at = get_global_id(0);
  if (at >= count) return;
  const int q = at % Q, p = at / Q % P;
  in += in_at + (long)(at / (P * Q)) * H * W;
  T most = -INFINITY;
  int place = -1;
  for (int r = 0; r < R; r++)
    for (int s = 0; s < S; s++) {
      const int h = p * step_h - pad_h + r * gap_h, w = q * step_w - pad_w + s * gap_w;
      if (h < 0 || w < 0 || h >= H || w >= W) continue;
      const T value = in[h * W + w];
      if (place < 0 || value > most || value != value) { most = value; place = h * W + w; }
    }
  out[at] = most;
  indices[at] = place;
}

__kernel void of_largest(const int count, __global const T* grad, const int grad_at,
                         __global const long* indices, const int indices_at, IMAGE, WINDOW,
                         __global T* out)
{
  const int at = get_global_id(0);
  if (at >= count) return;
  const int w = at % W, h = at / W % H;
  const int first = at / (H * W) * P * Q;
  const int p_first = max(0, (h + pad_h - (R - 1) * gap_h + step_h - 1) / step_h);
  const int q_first = max(0, (w + pad_w - (S - 1) * gap_w + step_w - 1) / step_w);
  T sum = 0;
  for (int p = p_first; p < min(P, (h + pad_h) / step_h + 1); p++)
    for (int q = q_first; q < min(Q, (w + pad_w) / step_w + 1); q++) {
      const int there = first + p * Q + q;
      if (indices[indices_at + there] == h * W + w) sum += grad[grad_at + there];
    }
  out[at] = sum;
}

// rows of the image that a window has: from h_begin(p) to h_end(p); what its sum is divided by
#if ADAPTIVE
#define BEGIN(p, in, out, step, pad) ((p) * (in) / (out))
#define END(p, in, out, reach, step, pad) (((p) + 1) * (in) + (out) - 1) / (out)
#define FIRST(h, in, out, reach, step, pad) ((h) * (out) / (in))
#define LAST(h, in, out, step, pad) ((((h) + 1) * (out) + (in) - 1) / (in))
#define ALL(p, in, out, reach, step, pad) 0
#else
#define BEGIN(p, in, out, step, pad) max(0, (p) * (step) - (pad))
#define END(p, in, out, reach, step, pad) min((in), (p) * (step) - (pad) + (reach))
#define FIRST(h, in, out, reach, step, pad) max(0, ((h) + (pad) - (reach) + (step)) / (step))
#define LAST(h, in, out, step, pad) min((out), ((h) + (pad)) / (step) + 1)
#define ALL(p, in, out, reach, step, pad) \
  (min((p) * (step) - (pad) + (reach), (in) + (pad)) - ((p) * (step) - (pad)))
#endif

inline int among(const int p, const int q, IMAGE, WINDOW, const int whole, const int fixed)
{
  if (fixed) return fixed;
  if (whole) return ALL(p, H, P, R, step_h, pad_h) * ALL(q, W, Q, S, step_w, pad_w);
  return (END(p, H, P, R, step_h, pad_h) - BEGIN(p, H, P, step_h, pad_h)) *
         (END(q, W, Q, S, step_w, pad_w) - BEGIN(q, W, Q, step_w, pad_w));
}

__kernel void means(const int count, __global const T* in, const int in_at, IMAGE, WINDOW,
                    const int whole, const int fixed, __global T* out)
{
  const int at = get_global_id(0);
  if (at >= count) return;
  const int q = at % Q, p = at / Q % P;
  in += in_at + (long)(at / (P * Q)) * H * W;
  T sum = 0;
  for (int h = BEGIN(p, H, P, step_h, pad_h); h < END(p, H, P, R, step_h, pad_h); h++)
    for (int w = BEGIN(q, W, Q, step_w, pad_w); w < END(q, W, Q, S, step_w, pad_w); w++)
      sum += in[h * W + w];
  out[at] = sum / among(p, q, H, W, P, Q, R, S, step_h, step_w, pad_h, pad_w, gap_h, gap_w,
                        whole, fixed);
}

__kernel void of_means(const int count, __global const T* grad, const int grad_at, IMAGE, WINDOW,
                       const int whole, const int fixed, __global T* out)
{
  const int at = get_global_id(0);
  if (at >= count) return;
  const int w = at % W, h = at / W % H;
  grad += grad_at + at / (H * W) * P * Q;
  T sum = 0;
  for (int p = FIRST(h, H, P, R, step_h, pad_h); p < LAST(h, H, P, step_h, pad_h); p++)
    for (int q = FIRST(w, W, Q, S, step_w, pad_w); q < LAST(w, W, Q, step_w, pad_w); q++)
      sum += grad[p * Q + q] / among(p, q, H, W, P, Q, R, S, step_h, step_w, pad_h, pad_w, gap_h,
                                     gap_w, whole, fixed);
  out[at] = sum;
}
