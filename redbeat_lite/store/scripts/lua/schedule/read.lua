-- needs parts
-- Return entries as they are at one moment: a page in due order, or the entries of some names.
-- KEYS: entries state due
-- ARGS: first last names...
--   first, last: ranks of the page, '' for the entries of the names
-- returns what shared/parts.lua returns
if first ~= '' then
  names = redis.call('ZRANGE', due, first, last)
end
return parts_of(names)
