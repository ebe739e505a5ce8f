-- For the scripts of the pipelines: the steps of a stage.
-- takes the sizes of the stages, "1,2,1", and the number of one
-- returns the number of its first step, how many it has, how many the next one has (nil: there is none)
local function steps_of(sizes, stage)
  local first, size, number = 0, 0, 0
  local following
  for each in string.gmatch(sizes, '%d+') do
    if number < stage then
      first = first + tonumber(each)
    elseif number == stage then
      size = tonumber(each)
    elseif number == stage + 1 then
      following = tonumber(each)
    end
    number = number + 1
  end
  return first, size, following
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
