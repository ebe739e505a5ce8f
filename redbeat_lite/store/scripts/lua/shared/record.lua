-- For scripts that record runs. A fate is the start or the end of one attempt of a run.

local LINES = 100000 -- lines that the feed keeps, about
local NESTING = 1000000 -- as in entries/run.py: an attempt modulo this counts its retries

-- Return the weight of an outcome. Of two outcomes of one attempt, the row has the heavier one.
-- letter: as in redbeat_lite/entries/run.py   begun: whether the body has begun
local function weight(letter, begun)
  if begun and (letter == 's' or letter == 'f' or letter == 'y') then
    return 5 -- The body has ended.
  elseif letter == 't' then
    return 4 -- Killed at the time limit. If a copy still runs, its end weighs more.
  elseif letter == 'l' then
    return 2 -- The worker died. A revoke that kills the body weighs more.
  elseif letter == 'r' then
    return 1
  elseif letter == 'w' then
    return -1 -- Sent. A fate from a worker weighs more, even if it was recorded first.
  end
  return begun and 3 or 0 -- If the body has not begun, another copy of the task may still run.
end

-- Remove the deadlines of a run that began or ended in time, or will not run. If the entry has an
-- open incident that this can close, set a deadline of time 0, by which the leader learns of it.
-- begin: ms from the nominal time to the start of the body, nil: it has not begun
local function clear(fate, begin)
  local letter, name = fate[1], fate[4]
  local run = string.format('|%.0f|', fate[5]) .. name
  local function settle(what, at, over, moment, told, ...)
    local in_time = at and moment and fate[5] + moment <= tonumber(at)
    if in_time or (at and over) then
      redis.call('ZREM', deadlines, what .. run)
    end
    for _, case in ipairs(in_time and redis.call('HMGET', incidents, ...) or {}) do
      if case then
        redis.call('ZADD', deadlines, 0, told .. run)
      end
    end
  end
  local at = redis.call('ZMSCORE', deadlines, 'start' .. run, 'finish' .. run)
  local over = not begin and letter ~= 'l' -- A run that has lost its worker can still run again.
  -- An attempt above 0 is a retry, so the run has begun before.
  settle('start', at[1], over or fate[7] > 0, begin, 'begun', 'missed:' .. name,
    'not_consumed:' .. name, 'late:' .. name)
  if not string.find('ryl', letter, 1, true) then
    settle('finish', at[2], over, begin and begin + (tonumber(fate[3]) or 0), 'ended', 'too_long:' .. name)
  end
end

-- Return the parts of a run's row, or nil if there is no row.
local function find_row(rows, nominal, id)
  for _, text in ipairs(redis.call('ZRANGE', rows, nominal, nominal, 'BYSCORE')) do
    local task, letter, begin, duration, attempt, line =
      string.match(text, '^(.*)|(%a)|(%x*)|(%x*)|(%x+)|([%d-]*)$')
    if task == id then
      return {text = text, letter = letter, begin = tonumber(begin, 16), duration = tonumber(duration, 16),
        attempt = tonumber(attempt, 16), line = line}
    end
  end
end

-- Record the fate of one attempt of a run, unless the recorded fate weighs more or is of a later
-- attempt. Each outcome but waiting and running adds a line to the feed. To record a fate twice
-- changes nothing, but the end of a body whose row is too old to be kept adds a second line.
-- rows: key of the entry's rows   now: server's time in ms   fate: a list:
--   [1] letter  [2] ms since the body began, '': it has not  [3] ms that it ran, '': not known
--   [4] name of the entry  [5] nominal time, ms  [6] task id  [7] attempt  [8] rows kept
--   [9] whether something is expected of the run  [10] life_ms of the rows  [11] worker  [12] error
--   [13] ms until the retry is due, null: there is none
-- returns nothing, or the error of a feed that took no line; the row is written all the same
local function record(rows, now, fate)
  local letter, since, duration = fate[1], tonumber(fate[2]), tonumber(fate[3])
  local name, nominal, id, attempt, history = fate[4], fate[5], fate[6], fate[7], fate[8]
  -- If a retry has expired, its run has failed, and the row keeps the times of the attempt before.
  local retry_expired = letter == 'e' and attempt % NESTING > 0
  if retry_expired then
    letter = 'f'
  end
  local mine = weight(letter, since)
  -- Not below 0, because the clock that the nominal time comes from can be ahead of the server's.
  local begin = since and math.max(now - since - nominal, 0)
  local old, kept_line = find_row(rows, nominal, id), nil
  if old then
    local theirs = weight(old.letter, old.begin)
    -- Another copy of the body can begin, but only until a copy has ended.
    local begins_again = letter == 'r' and theirs < 5
    local is_known = retry_expired and old.letter == 'f' -- The same fate, sent twice.
    if attempt < old.attempt or (attempt == old.attempt and mine <= theirs and not begins_again) or is_known then
      return
    end
    local later_by = begin and old.begin and old.begin - begin or 0
    if letter == 'l' and old.letter == 'r' and later_by >= 1000 then
      return -- The row is of a copy, which began later than the lost body.
    end
    if retry_expired and old.begin then
      begin, duration, attempt, kept_line = old.begin, old.duration, old.attempt, old.line
    end
  elseif mine < 4 and redis.call('ZCARD', rows) >= history then
    local oldest = redis.call('ZRANGE', rows, 0, 0, 'WITHSCORES')
    if tonumber(oldest[2]) > nominal then
      -- All rows are newer, so this run gets none. Its deadlines can still be open.
      return fate[9] and begin and clear(fate, begin)
    end
  end
  local line, why = '', nil
  if letter ~= 'r' and letter ~= 'w' then
    line = redis.pcall('XADD', feed, 'MAXLEN', '~', LINES, '*', 'name', name, 'nominal', nominal, 'id', id,
      'outcome', letter, 'begin', begin or '', 'duration', duration or '', 'attempt', attempt, 'worker', fate[11],
      'error', retry_expired and 'its retry has expired' or fate[12],
      'retry', tonumber(fate[13]) and now + fate[13] or '')
    if type(line) == 'table' then
      line, why = '', line.err
    end
  end
  if old then
    redis.call('ZREM', rows, old.text)
  end
  local numbers = string.format('|%s|%s|%x|', begin and string.format('%x', begin) or '',
    duration and string.format('%x', duration) or '', attempt)
  redis.call('ZADD', rows, nominal, id .. '|' .. letter .. numbers .. (kept_line or line))
  redis.call('ZREMRANGEBYRANK', rows, 0, -(history + 1))
  redis.call('PEXPIRE', rows, fate[10])
  if fate[9] and letter ~= 'w' then
    clear(fate, begin)
  end
  return why
end
