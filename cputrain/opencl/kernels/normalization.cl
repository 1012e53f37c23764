// Softmax and layer norm of rows, one work-group per row; sums are reduced in local memory in a
// fixed order. Rows are contiguous.

#define EACH_COLUMN for (int i = item; i < size; i += ITEMS)
// reduce `value` of all items by the expression `merged` of a and b, through the local array `name`
#define REDUCE(name, value, merged) { \
  name[item] = value; \
  barrier(CLK_LOCAL_MEM_FENCE); \
  for (int half_ = ITEMS / 2; half_ > 0; half_ /= 2) { \
    if (item < half_) { const T a = name[item], b = name[item + half_]; name[item] = merged; } \
    barrier(CLK_LOCAL_MEM_FENCE); \
  } \
  value = name[0]; \
  barrier(CLK_LOCAL_MEM_FENCE); }
#define ROW const int item = get_local_id(0); const long row = get_group_id(0);
#define KERNEL __kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void

KERNEL softmax(const int size, __global const ELEMENT* in, const long in_at, __global ELEMENT* out)
{
  __local T shared[ITEMS];
  ROW
  in += in_at + row * size;
  out += row * size;
  T largest = -INFINITY, sum = 0;
  EACH_COLUMN { const T x = LOAD(in, i); largest = x > largest || x != x ? x : largest; }
  REDUCE(shared, largest, (a > b || a != a ? a : b))
  EACH_COLUMN sum += exp(LOAD(in, i) - largest);
  REDUCE(shared, sum, a + b)
#if IS_LOG
  sum = log(sum);
  EACH_COLUMN STORE(out, i, LOAD(in, i) - largest - sum);
#else
  EACH_COLUMN STORE(out, i, exp(LOAD(in, i) - largest) / sum);
#endif
}

KERNEL softmax_gradient(const int size, __global const ELEMENT* grad, const long grad_at,
                        __global const ELEMENT* softmax_out, const long softmax_at,
                        __global ELEMENT* out)
{
  __local T shared[ITEMS];
  ROW
  grad += grad_at + row * size;
  softmax_out += softmax_at + row * size;
  out += row * size;
  T sum = 0;
#if IS_LOG
  EACH_COLUMN sum += LOAD(grad, i);
  REDUCE(shared, sum, a + b)
  EACH_COLUMN STORE(out, i, LOAD(grad, i) - exp(LOAD(softmax_out, i)) * sum);
#else
  EACH_COLUMN sum += LOAD(grad, i) * LOAD(softmax_out, i);
  REDUCE(shared, sum, a + b)
  EACH_COLUMN STORE(out, i, LOAD(softmax_out, i) * (LOAD(grad, i) - sum));
#endif
}

KERNEL layer_norm(const int size, __global const ELEMENT* in, const long in_at,
                  __global const ELEMENT* weight, const long weight_at,
                  __global const ELEMENT* bias, const long bias_at, const T eps,
                  __global ELEMENT* out, __global T* mean, __global T* inverse)
{
  __local T shared[ITEMS];
  ROW
  in += in_at + row * size;
  out += row * size;
  T sum = 0, squares = 0;
  EACH_COLUMN sum += LOAD(in, i);
  REDUCE(shared, sum, a + b)
  const T center = sum / size;
  EACH_COLUMN { const T x = LOAD(in, i) - center; squares += x * x; }
  REDUCE(shared, squares, a + b)
  const T scale = 1 / sqrt(squares / size + eps);
  EACH_COLUMN {
    const T factor = HAS_WEIGHT ? LOAD(weight, weight_at + i) : (T)1;
    const T shift = HAS_BIAS ? LOAD(bias, bias_at + i) : (T)0;
    STORE(out, i, (LOAD(in, i) - center) * scale * factor + shift);
  }
  if (item == 0) { mean[row] = center; inverse[row] = scale; }
}

KERNEL layer_norm_gradient(const int size, __global const ELEMENT* grad, const long grad_at,
                           __global const ELEMENT* in, const long in_at,
                           __global const T* mean, const long mean_at,
                           __global const T* inverse, const long inverse_at,
                           __global const ELEMENT* weight, const long weight_at,
                           __global ELEMENT* out)
{
  __local T shared[ITEMS];
  ROW
  grad += grad_at + row * size;
  in += in_at + row * size;
  out += row * size;
  const T center = mean[mean_at + row], scale = inverse[inverse_at + row];
#define SCALED (LOAD(grad, i) * (HAS_WEIGHT ? LOAD(weight, weight_at + i) : (T)1))
  T sum = 0, dot_sum = 0;
  EACH_COLUMN { sum += SCALED; dot_sum += SCALED * (LOAD(in, i) - center) * scale; }
  REDUCE(shared, sum, a + b)
  REDUCE(shared, dot_sum, a + b)
  EACH_COLUMN {
    const T slope = (LOAD(in, i) - center) * scale * dot_sum / size;
    STORE(out, i, scale * (SCALED - sum / size - slope));
  }
}

// gradients of weight and bias: column sums of a part of the rows
__kernel void weight_gradients(const long rows, const int size, const int num_parts,
                               __global const ELEMENT* grad, const long grad_at,
                               __global const ELEMENT* in, const long in_at,
                               __global const T* mean, const long mean_at,
                               __global const T* inverse, const long inverse_at,
                               __global T* grad_weight, __global T* grad_bias)
{
  const int i = get_global_id(0), part = get_global_id(1);
  if (i >= size) return;
  T dot_sum = 0, sum = 0;
  for (long row = part; row < rows; row += num_parts) {
    const T value = LOAD(grad, grad_at + row * size + i);
    sum += value;
    dot_sum += value * (LOAD(in, in_at + row * size + i) - mean[mean_at + row])
             * inverse[inverse_at + row];
  }
  grad_weight[(long)part * size + i] = dot_sum;
  grad_bias[(long)part * size + i] = sum;
}
