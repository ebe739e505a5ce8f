-- For the scripts of the pipelines: the steps of a stage, and the life of a run.
-- takes the sizes of the stages, "1,2,1", and the number of one
-- returns the number of its first step, how many it has, how many the next one has (nil: there is none)
local function steps_of(sizes, stage)
  local first, all = 0, {}
  for size in string.gmatch(sizes, '%d+') do
    all[#all + 1] = tonumber(size)
  end
  for n = 1, stage do
    first = first + all[n]
  end
  return first, all[stage + 1], all[stage + 2]
end

-- Put unpublished steps into the outbox, from `step` to `last`, at most `free` of them.
-- returns the first step that is left
local function fill(step, last, free)
  while step <= last and free > 0 do
    redis.call('HSET', outbox, step, '0.0')
    step, free = step + 1, free - 1
  end
  return step
end

-- Let the run expire after so many ms.
local function keep(ms)
  for _, key in ipairs({run, steps, results, outbox}) do
    redis.call('PEXPIRE', key, ms)
  end
end
