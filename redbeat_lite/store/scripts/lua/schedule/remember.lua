-- needs leads
-- Remember something of the schedule as a whole: an owner's config entries, the zones it is planned by, a mark.
-- KEYS[1] leader  KEYS[2] meta
-- ARGV[1] token  ARGV[2] term of the leader that writes, '' for anybody else  ARGV[3] field  ARGV[4] value
-- returns {0} this term is over, nothing was written | {1}
if ARGV[1] ~= '' and not leads(KEYS[1], ARGV[1], ARGV[2]) then
  return {0}
end
redis.call('HSET', KEYS[2], ARGV[3], ARGV[4])
return {1}
