-- Scans as a Futhark programmer would write them. Each entry does the work of the contestant of the same name in bench/native.

-- Sums of exponentials: (m, s) stands for s exp(m).
def add_exponentials (m1: f32, s1: f64) (m2: f32, s2: f64) : (f32, f64) =
  if m2 <= m1 then (m1, s1 + s2 * f64.f32 (f32.exp (m2 - m1))) else (m2, s1 * f64.f32 (f32.exp (m1 - m2)) + s2)

def last (a: f32) (b: f32) : f32 = if b != 0 then b else a

def compose (a1: f32, b1: f32) (a2: f32, b2: f32) : (f32, f32) = (a2 * a1, a2 * b1 + b2)

entry cumsum [n] (xs: [n]f32) : [n]f32 = scan (+) 0 xs

entry cummax [n] (xs: [n]f32) : [n]f32 = scan (\a b -> if a > b then a else b) (-f32.inf) xs

entry cumlogsumexp [n] (xs: [n]f32) : [n]f32 =
  scan add_exponentials (-f32.inf, 0) (map (\x -> (x, 1)) xs) |> map (\(m, s) -> m + f32.log (f32.f64 s))

entry last_nonzero [n] (xs: [n]f32) : [n]f32 = scan last 0 xs

entry cumsum_exclusive [n] (xs: [n]f32) : [n]f32 =
  scan (+) 0 (tabulate n (\i -> if i == 0 then 0 else xs[i - 1]))

entry cumsum_reversed [n] (xs: [n]f32) : [n]f32 = reverse (scan (+) 0 (reverse xs))

entry cumsum_segmented [n] (xs: [n]f32) (starts: [n]bool) : [n]f32 =
  scan (\(a, f) (b, g) -> (if g then b else a + b, f || g)) (0, false) (zip xs starts) |> map (.0)

entry affine [n] (as: [n]f32) (bs: [n]f32) : ([n]f32, [n]f32) =
  unzip (scan compose (1, 0) (zip as bs))

entry recurrence [n] (as: [n]f32) (bs: [n]f32) : [n]f32 =
  map (.1) (scan compose (1, 0) (zip as bs))

def times2 (a, b, c, d) (e, f, g, h) : (f32, f32, f32, f32) =
  (a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h)

entry products_2x2 [n] (ms: [n][2][2]f32) : [n][2][2]f32 =
  map (\m -> (m[0, 0], m[0, 1], m[1, 0], m[1, 1])) ms
  |> scan times2 (1, 0, 0, 1)
  |> map (\(a, b, c, d) -> [[a, b], [c, d]])

def times3 ((a, b, c), (d, e, f), (g, h, i)) ((j, k, l), (m, n, o), (p, q, r))
           : ((f32, f32, f32), (f32, f32, f32), (f32, f32, f32)) =
  let row (x, y, z) = (x * j + y * m + z * p, x * k + y * n + z * q, x * l + y * o + z * r)
  in (row (a, b, c), row (d, e, f), row (g, h, i))

entry products_3x3 [n] (ms: [n][3][3]f32) : [n][3][3]f32 =
  let struct (r: [3]f32) = (r[0], r[1], r[2])
  let array (a, b, c) : [3]f32 = [a, b, c]
  in map (\m -> (struct m[0], struct m[1], struct m[2])) ms
     |> scan times3 ((1, 0, 0), (0, 1, 0), (0, 0, 1))
     |> map (\(a, b, c) -> [array a, array b, array c])

-- Along the middle axis of three, or the last of two.
entry cumsum_rows [m][n] (xs: [m][n]f32) : [m][n]f32 = map (scan (+) 0) xs

entry cumsum_middle [o][n][k] (xs: [o][n][k]f32) : [o][n][k]f32 =
  map (\x -> transpose (map (scan (+) 0) (transpose x))) xs

entry cumsum_rows_wide [m][n] (xs: [m][n]i64) : [m][n]i64 = map (scan (+) 0) xs
