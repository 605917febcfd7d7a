-- Segmented reductions. Each entry does the work of the contestant of the same name in bench/native: segments_* are scans with
-- flags, which keep every thread busy whatever the segments are; loops_* map over segments, with a sequential loop in each.

def larger (a: f32) (b: f32) : f32 = if a > b then a else b

def farther (a: f32) (b: f32) : f32 = if f32.abs b > f32.abs a then b else a

def last_of [n][m] (scanned: [n]f32) (offsets: [m]i32) (ne: f32) : [m - 1]f32 =
  tabulate (m - 1) (\s -> if offsets[s] == offsets[s + 1] then ne else scanned[i64.i32 offsets[s + 1] - 1])

def by_scan [n][m] (op: f32 -> f32 -> f32) (ne: f32) (xs: [n]f32) (offsets: [m]i32) : [m - 1]f32 =
  let starts = scatter (replicate n false) (map i64.i32 offsets) (replicate m true)
  let flagged (a, f) (b, g) = (if g then b else op a b, f || g)
  in last_of (map (.0) (scan flagged (ne, false) (zip xs starts))) offsets ne

def by_loops [n][m] (op: f32 -> f32 -> f32) (ne: f32) (xs: [n]f32) (offsets: [m]i32) : [m - 1]f32 =
  tabulate (m - 1) (\s ->
    loop r = ne for i in i64.i32 offsets[s]..<i64.i32 offsets[s + 1] do op r xs[i])

entry segments_sum [n][m] (xs: [n]f32) (offsets: [m]i32) : [m - 1]f32 = by_scan (+) 0 xs offsets

entry segments_max [n][m] (xs: [n]f32) (offsets: [m]i32) : [m - 1]f32 = by_scan larger (-f32.inf) xs offsets

entry segments_farthest [n][m] (xs: [n]f32) (offsets: [m]i32) : [m - 1]f32 = by_scan farther 0 xs offsets

entry loops_sum [n][m] (xs: [n]f32) (offsets: [m]i32) : [m - 1]f32 = by_loops (+) 0 xs offsets

entry loops_max [n][m] (xs: [n]f32) (offsets: [m]i32) : [m - 1]f32 = by_loops larger (-f32.inf) xs offsets

entry loops_farthest [n][m] (xs: [n]f32) (offsets: [m]i32) : [m - 1]f32 = by_loops farther 0 xs offsets

entry csr_times_vector [n][m][k] (data: [n]f32) (columns: [n]i32) (offsets: [m]i32) (x: [k]f32) : [m - 1]f32 =
  tabulate (m - 1) (\s ->
    loop r = 0 for i in i64.i32 offsets[s]..<i64.i32 offsets[s + 1] do r + data[i] * x[columns[i]])
