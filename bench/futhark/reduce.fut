-- Reductions. Each entry does the work of the contestant of the same name in bench/native.

-- Comparisons, which become vector instructions; f32.max has a call for its NaN.
def largest = reduce_comm (\(a: f32) b -> if a > b then a else b) (-f32.inf)

entry reduce_sum [n] (xs: [n]f32) : f32 = f32.sum xs

entry reduce_max [n] (xs: [n]f32) : f32 = largest xs

entry reduce_argmax [n] (xs: [n]f32) : i32 =
  let later (a, i) (b, j) = if a > b || (a == b && i < j) then (a, i) else (b, j)
  in (reduce_comm later (-f32.inf, i32.highest) (zip xs (map i32.i64 (iota n)))).1

entry reduce_logsumexp [n] (xs: [n]f32) : f32 =
  let m = largest xs
  in m + f32.log (f32.f64 (f64.sum (map (\x -> f64.f32 (f32.exp (x - m))) xs)))

entry reduce_product [n] (ms: [n][2][2]f32) : [2][2]f32 =
  let times (a, b, c, d) (e, f, g, h) = (a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h)
  let (a, b, c, d) =
    map (\m -> (m[0, 0], m[0, 1], m[1, 0], m[1, 1])) ms
    |> reduce times (1, 0, 0, 1)
  in [[a, b], [c, d]]

entry reduce_moments [n] (xs: [n]f32) : (f32, f32, f32) =
  let merge (n1, m1, s1) (n2, m2, s2) =
    let n = n1 + n2
    let d = m2 - m1
    let w = n2 / f32.max n 1
    in (n, m1 + d * w, s1 + s2 + d * d * n1 * w)
  in reduce_comm merge (0, 0, 0) (map (\x -> (1, x, 0)) xs)

-- Along the last axis, or the first.
entry sum_rows [m][n] (xs: [m][n]f32) : [m]f32 = map f32.sum xs

entry sum_columns [m][n] (xs: [m][n]f32) : [n]f32 = map f32.sum (transpose xs)

entry max_rows [m][n] (xs: [m][n]f32) : [m]f32 = map largest xs

entry max_columns [m][n] (xs: [m][n]f32) : [n]f32 = map largest (transpose xs)
