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

-- Tell the leader that a run was in time: set a deadline of time 0, if the entry has an open incident
-- that this can close.
-- what: 'begun' or 'ended'   run: end of the member, with nominal time and entry
-- ...: fields of the incidents
local function signal(what, run, ...)
  for _, incident in ipairs(redis.call('HMGET', incidents, ...)) do
    if incident then
      redis.call('ZADD', deadlines, 0, what .. run)
    end
  end
end

-- Remove the deadlines of a run that began or ended in time, or will not run.
-- letter, attempt: of the fate   begin: ms from the nominal time to the start of the body, nil: it
-- has not begun   duration: ms that the body ran, nil: not known
local function clear_deadlines(name, nominal, letter, attempt, begin, duration)
  local run = string.format('|%.0f|', nominal) .. name
  local start_at, finish_at = unpack(redis.call('ZMSCORE', deadlines, 'start' .. run, 'finish' .. run))
  local will_not_run = not begin and letter ~= 'l' -- A run that has lost its worker can run again.
  local begun_in_time = start_at and begin and nominal + begin <= tonumber(start_at)
  -- An attempt above 0 is a retry, so the run has begun before.
  if begun_in_time or (start_at and (will_not_run or attempt > 0)) then
    redis.call('ZREM', deadlines, 'start' .. run)
  end
  if begun_in_time then
    signal('begun', run, 'missed:' .. name, 'not_consumed:' .. name, 'late:' .. name)
  end
  if string.find('ryl', letter, 1, true) then
    return -- The run has not ended.
  end
  local ended_in_time = finish_at and begin and nominal + begin + (duration or 0) <= tonumber(finish_at)
  if ended_in_time or (finish_at and will_not_run) then
    redis.call('ZREM', deadlines, 'finish' .. run)
  end
  if ended_in_time then
    signal('ended', run, 'too_long:' .. name)
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
-- rows: key of the entry's rows   now: server's time in ms   fate: a list, in this order:
--   letter
--   since: ms since the body began, '': it has not   duration: ms that it ran, '': not known
--   name: of the entry   nominal: nominal time of the run, ms   id: of its task   attempt
--   history: rows that the entry keeps   is_expected: whether something is expected of the run
--   life_ms: of the rows   worker   problem: error of the run
--   retry_ms: ms until the retry is due, null: there is none
-- returns nothing, or the error of a feed that took no line; the row is written all the same
local function record(rows, now, fate)
  local letter, since, duration, name, nominal, id, attempt, history, is_expected, life_ms, worker, problem, retry_ms =
    unpack(fate)
  since, duration = tonumber(since), tonumber(duration)
  -- If a retry has expired, its run has failed, and the row keeps the times of the attempt before.
  local retry_expired = letter == 'e' and attempt % NESTING > 0
  if retry_expired then
    letter, problem = 'f', 'its retry has expired'
  end
  local mine = weight(letter, since)
  -- Not below 0, because the clock that the nominal time comes from can be ahead of the server's.
  local begin = since and math.max(now - since - nominal, 0)
  local body = {begin = begin, duration = duration, attempt = attempt} -- as the new row has it
  local old = find_row(rows, nominal, id)
  if old then
    local theirs = weight(old.letter, old.begin)
    local is_older = attempt < old.attempt
    local weighs_less = attempt == old.attempt and mine <= theirs
    -- Another copy of the body can begin, but only until a copy has ended.
    local begins_again = letter == 'r' and theirs < 5
    local is_known = retry_expired and old.letter == 'f' -- The same fate, sent twice.
    if is_older or (weighs_less and not begins_again) or is_known then
      return
    end
    local later_by = begin and old.begin and old.begin - begin or 0
    if letter == 'l' and old.letter == 'r' and later_by >= 1000 then
      return -- The row is of a copy, which began later than the lost body.
    end
    if retry_expired and old.begin then
      body = old
    end
  elseif mine < 4 and redis.call('ZCARD', rows) >= history then
    local oldest = redis.call('ZRANGE', rows, 0, 0, 'WITHSCORES')
    if tonumber(oldest[2]) > nominal then
      -- All rows are newer, so this run gets none. Its deadlines can still be open. They stay if it
      -- was expired or rejected before it began, so that the leader reports it without a row.
      if is_expected and (begin or not string.find('wej', letter, 1, true)) then
        clear_deadlines(name, nominal, letter, attempt, begin, duration)
      end
      return
    end
  end
  local line, why = '', nil
  if letter ~= 'r' and letter ~= 'w' then
    line = redis.pcall('XADD', feed, 'MAXLEN', '~', LINES, '*', 'name', name, 'nominal', nominal, 'id', id,
      'outcome', letter, 'begin', body.begin or '', 'duration', body.duration or '', 'attempt', body.attempt,
      'worker', worker, 'error', problem, 'retry', tonumber(retry_ms) and now + retry_ms or '')
    if type(line) == 'table' then
      line, why = '', line.err
    end
  end
  if old then
    redis.call('ZREM', rows, old.text)
  end
  local numbers = string.format('|%s|%s|%x|', body.begin and string.format('%x', body.begin) or '',
    body.duration and string.format('%x', body.duration) or '', body.attempt)
  redis.call('ZADD', rows, nominal, id .. '|' .. letter .. numbers .. (body.line or line))
  redis.call('ZREMRANGEBYRANK', rows, 0, -(history + 1))
  redis.call('PEXPIRE', rows, life_ms)
  if is_expected and letter ~= 'w' then
    clear_deadlines(name, nominal, letter, attempt, body.begin, duration)
  end
  return why
end
