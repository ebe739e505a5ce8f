-- Return whether a term is not over: the leader's key still has its token and its number.
local function leads(leader, token, term)
  local held = redis.call('HMGET', leader, 'token', 'term')
  return held[1] == token and held[2] == term
end
