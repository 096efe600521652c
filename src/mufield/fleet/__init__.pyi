"""The public names of this package, each written once: `lazy_loader` reads them from here."""

from .fluid import FluidPlan as FluidPlan
from .fluid import fluid_plan as fluid_plan
from .fluid import for_fleet as for_fleet
from .maps import CityMap as CityMap
from .network_flow import FleetState as FleetState
from .network_flow import Orders as Orders
from .passengers import Earnings as Earnings
from .passengers import Passengers as Passengers
from .passengers import stay as stay
from .passengers import towards_demand as towards_demand
from .reading import read_trips as read_trips
from .records import TripModel as TripModel
from .records import TripRecords as TripRecords
from .region_data import regions_from_days as regions_from_days
from .region_data import regions_from_scenario as regions_from_scenario
from .region_data import regions_from_trips as regions_from_trips
from .regions import RegionDay as RegionDay
from .regions import Regions as Regions
from .trips import Trips as Trips
